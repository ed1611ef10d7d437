"""The coordinator: sessions, the loop of an answer, text. It computes nothing."""
