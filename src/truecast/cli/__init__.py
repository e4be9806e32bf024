"""One thin file per verb: parse, call one public function, render."""
