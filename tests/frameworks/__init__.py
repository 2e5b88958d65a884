"""Consumers of other frameworks with plans, through failures and kills."""
