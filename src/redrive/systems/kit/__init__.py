"""What systems share. A file is one idea; whoever needs it imports that file."""
