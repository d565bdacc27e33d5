"""The book as a course: hand-outs without solutions, the teacher's folder, slides, marks."""
