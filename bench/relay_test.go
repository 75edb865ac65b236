package bench

import (
	"net"
	"testing"
	"time"

	"weft/wire"
)

func TestAWindowGrowsUntilSomethingIsLostAndGivesUpWhatIsNotHeardOf(t *testing.T) {
	w := newWindow()
	if w.room(0) != initialWindow {
		t.Fatalf("at first there is room for %d", w.room(0))
	}
	w.heard(10, 10, 10)
	if w.room(10) != 20 {
		t.Errorf("slow start: after 10 of 10 there is room for %d, not 20", w.room(10))
	}
	w.heard(30, 20, 19) // one of the second ten is lost
	if got := w.most(); got != 21 {
		t.Errorf("after a loss the window is %d, not 0.7 x 30", got)
	}
	if w.room(30) != 11 {
		t.Errorf("with 10 of 21 under way there is room for %d", w.room(30))
	}
	w.heard(30, 25, 22) // two more, sent before the loss was heard of
	if w.most() < 21 {
		t.Errorf("one occasion makes the window smaller twice: %d", w.most())
	}
	w.heard(41, 41, 38)
	if w.most() != 21 && w.most() != 22 {
		t.Errorf("out of slow start a round trip adds one: %d", w.most())
	}
	w.heard(60, 50, 46)
	if w.most() > 16 {
		t.Errorf("the next occasion does not make the window smaller: %d", w.most())
	}
	w.silent(60)
	if w.room(60) != leastWindow {
		t.Errorf("after silence there is room for %d", w.room(60))
	}
	for i := range uint64(1000) {
		w.heard(60+i, 60+i, 56+i)
	}
	if w.most() > mostWindow {
		t.Errorf("the window is %d", w.most())
	}
}

// A receiver makes out its datagrams however the stream is cut, and passes over what is none.
func TestAReceiverOfFramesCountsDatagramsHoweverTheStreamIsCut(t *testing.T) {
	for name, c := range map[string]struct {
		framing
		prefix, other []byte
	}{
		"weft": {weftFraming, wire.AppendStreamData(nil, 7, payload), append(wire.AppendStreamHeader(nil, wire.StreamPing, 8), make([]byte, 8)...)},
		"derp": {derpFraming, append(derpFrame(nil, derpReceive, derpKey+payload), make([]byte, derpKey)...), derpFrame(nil, 6, 0)},
	} {
		near, far := net.Pipe()
		ends, _ := net.Pipe()
		f := newFlow()
		s := newStreamFlow(c.framing, ends, far, c.prefix, f)
		var all []byte
		for i := range uint64(20) {
			all = append(append(all, c.other...), c.prefix...)
			all = append(all, make([]byte, payload)...)
			all[len(all)-payload+7] = byte(i)
		}
		all = append(all, c.other...)
		for size := 1; len(all) > 0; size = size*3 + 1 {
			n := min(size, len(all))
			near.SetWriteDeadline(time.Now().Add(5 * time.Second))
			if _, err := near.Write(all[:n]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all = all[n:]
		}
		for f.reached.Load() < 20 {
			select {
			case <-f.more:
			case <-time.After(5 * time.Second):
				t.Fatalf("%s: %d of 20 datagrams are made out", name, f.reached.Load())
			}
		}
		if f.arrived.Load() != 20 {
			t.Errorf("%s: %d are counted", name, f.arrived.Load())
		}
		s.Close()
		near.Close()
	}
}
