"""Find dead letters, browse them safely, and re-drive them without loss.

`DeadLetters` is the interface used by commands, API and page. `Operations` implements it in this
process, and `RemoteDeadLetters` by calling a server. The names below are loaded when they are first
used. Values require msgspec, `RemoteDeadLetters` requires httpx, and a journal in a database
requires SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.ops.brokers.discovery import (
        DeadLetterQueue as DeadLetterQueue,
        Override as Override,
    )
    from hopback.ops.contract.candidates import (
        CandidateAnswer as CandidateAnswer,
        CandidateList as CandidateList,
        QueueAnswer as QueueAnswer,
        QueueCandidate as QueueCandidate,
    )
    from hopback.ops.contract.search import (
        SearchHit as SearchHit,
        SearchProgress as SearchProgress,
        SearchRequest as SearchRequest,
        SkippedQueue as SkippedQueue,
        survey_queue as survey_queue,
    )
    from hopback.ops.contract.surveys import (
        ErrorGroup as ErrorGroup,
        ErrorInQueue as ErrorInQueue,
        ErrorOverview as ErrorOverview,
        HourCount as HourCount,
        QueueTrend as QueueTrend,
        SurveyedArchive as SurveyedArchive,
        SurveyedQueue as SurveyedQueue,
        TrendSample as TrendSample,
    )
    from hopback.ops.brokers.managed_broker import ManagedBroker as ManagedBroker
    from hopback.ops.client import RemoteDeadLetters as RemoteDeadLetters
    from hopback.ops.contract.interface import DeadLetters as DeadLetters
    from hopback.ops.contract.requests import (
        AuditQuery as AuditQuery,
        DiscardRequest as DiscardRequest,
        Edit as Edit,
        GroupBy as GroupBy,
        JobKind as JobKind,
        Pace as Pace,
        PatchOperation as PatchOperation,
        RAMP as RAMP,
        RedriveRequest as RedriveRequest,
        Selection as Selection,
        Settings as Settings,
        Submission as Submission,
        Target as Target,
        TargetKind as TargetKind,
        Who as Who,
        SessionRequest as SessionRequest,
    )
    from hopback.ops.contract.values import (
        AuditEntry as AuditEntry,
        ChangeSample as ChangeSample,
        Cost as Cost,
        Counts as Counts,
        DeadLetter as DeadLetter,
        Depth as Depth,
        EditedCopy as EditedCopy,
        FailedMessage as FailedMessage,
        FailureRecord as FailureRecord,
        Group as Group,
        Groups as Groups,
        HeaderView as HeaderView,
        HeldBack as HeldBack,
        Imported as Imported,
        Job as Job,
        JobPlan as JobPlan,
        JobState as JobState,
        LeftOutCount as LeftOutCount,
        LimitPolicy as LimitPolicy,
        LookProgress as LookProgress,
        MessageView as MessageView,
        Moment as Moment,
        Page as Page,
        Price as Price,
        QueueDetail as QueueDetail,
        QueueSummary as QueueSummary,
        ReachedQueue as ReachedQueue,
        SessionView as SessionView,
        Survey as Survey,
        TargetChoice as TargetChoice,
        TimelineEntry as TimelineEntry,
        WayCheck as WayCheck,
    )
    from hopback.ops.jobs.journal import (
        Journal as Journal,
        MemoryJournal as MemoryJournal,
        open_journal as open_journal,
    )
    from hopback.ops.notes.values import (
        GroupNote as GroupNote,
        NewFilter as NewFilter,
        NewNote as NewNote,
        SavedFilter as SavedFilter,
    )
    from hopback.ops.operations import Operations as Operations

_HOMES = {
    "hopback.ops.brokers.discovery": "DeadLetterQueue Override",
    "hopback.ops.contract.candidates": "CandidateAnswer CandidateList QueueAnswer QueueCandidate",
    "hopback.ops.contract.search": "SearchHit SearchProgress SearchRequest SkippedQueue survey_queue",
    "hopback.ops.contract.surveys": """
        ErrorGroup ErrorInQueue ErrorOverview HourCount QueueTrend SurveyedArchive
        SurveyedQueue TrendSample
    """,
    "hopback.ops.client": "RemoteDeadLetters",
    "hopback.ops.contract.interface": "DeadLetters",
    "hopback.ops.contract.requests": """
        AuditQuery DiscardRequest Edit GroupBy JobKind
        Pace PatchOperation RAMP RedriveRequest Selection
        Settings Submission Target TargetKind Who SessionRequest
    """,
    "hopback.ops.contract.values": """
        AuditEntry ChangeSample Cost Counts DeadLetter Depth EditedCopy FailedMessage FailureRecord
        Group Groups HeaderView HeldBack Imported Job JobPlan JobState LeftOutCount
        LimitPolicy LookProgress MessageView Moment Page Price QueueDetail QueueSummary
        ReachedQueue SessionView Survey TargetChoice TimelineEntry WayCheck
    """,
    "hopback.ops.jobs.journal": "Journal MemoryJournal open_journal",
    "hopback.ops.notes.values": "GroupNote NewFilter NewNote SavedFilter",
    "hopback.ops.brokers.managed_broker": "ManagedBroker",
    "hopback.ops.operations": "Operations",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
