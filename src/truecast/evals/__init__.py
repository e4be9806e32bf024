"""Task runs: asked, recorded and scored; and two of them compared."""
