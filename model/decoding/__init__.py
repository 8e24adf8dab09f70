"""What surrounds the decode loop: how a token is drawn, where a text ends, and how texts reach people."""
