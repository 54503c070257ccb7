"""One corpus with its search engines behind one door, opened, checked and asked."""
