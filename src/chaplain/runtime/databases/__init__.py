"""The engines that execute SQL requests, a package for each kind of database, and the code that they share."""
