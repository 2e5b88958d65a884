"""Consumers of other frameworks with plans of ours, through failures and kills."""
