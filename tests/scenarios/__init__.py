"""The five documents, sentence by sentence: what each says of messages, run as tests."""
