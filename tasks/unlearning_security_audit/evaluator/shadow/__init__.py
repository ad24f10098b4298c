"""Following a program over shadows of its data, without running any of it."""
