"""Makes drafts for targets that have no small sibling."""
