"""Starting the processes of a run, keeping them alive, and watching them."""
