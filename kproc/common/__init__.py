"""Small modules that the broker and its clients share. They import nothing of kproc but each other."""
