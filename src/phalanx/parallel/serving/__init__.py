"""What a parameter server decides and keeps; `parallel/server.py` sends and receives."""
