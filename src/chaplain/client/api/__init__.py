"""The methods of both clients: argument checks, the calls they make, and what they return."""
