"""How `chaplain wire` shows and builds messages of each layer."""
