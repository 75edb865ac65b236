package engine

import (
	"testing"

	"weft/engine/segment"
)

func TestWhoDoesNotListenIsToldNoMoreThanSoOften(t *testing.T) {
	var c cutter
	p := append(make([]byte, segment.HeaderSize), packet(addrOf(1), addrOf(2), 1, 1400)...)
	p[segment.HeaderSize+6] = 0x40 // don't fragment
	const tries = 20_000
	told := 0
	try := func() {
		reply, err := c.begin(p, 1400, 1300)
		if err != nil || reply == nil {
			t.Fatalf("a packet that is too long is none: %v", err)
		}
		if len(reply) > 0 {
			told++
		}
	}
	for range tries {
		try()
	}
	if told < 10 || told > tries/2 {
		t.Errorf("of %d packets, all at once, %d are answered", tries, told)
	}
	if n := testing.AllocsPerRun(100, try); n > 0 && !raceDetector {
		t.Errorf("that takes %.0f allocations", n)
	}
	if reply, err := c.begin(p, 1400, 1400); reply != nil || err != nil || c.next() == nil {
		t.Errorf("a packet that fits is told %x, %v", reply, err)
	}
}
