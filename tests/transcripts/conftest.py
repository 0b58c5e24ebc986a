"""`pytest tests/transcripts --rewrite` writes what was said in place of what was expected. Read the difference!"""


def pytest_addoption(parser):
    parser.addoption("--rewrite", action="store_true", default=False, help="write transcripts anew")
