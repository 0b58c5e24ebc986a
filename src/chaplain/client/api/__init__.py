"""The methods of both clients: argument checks, the calls they make, and the values they return."""
