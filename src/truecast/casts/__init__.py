"""One file per cast; pure. Codes and scales in, codes and scales and a report out. No file, no tensor name."""
