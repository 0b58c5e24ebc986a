"""Code that commands share: connection options, input, output, and how a closed pipe ends a command."""
