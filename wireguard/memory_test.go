package wireguard

import (
	"runtime"
	"testing"
	"time"
)

// TestAnIdlePeerTakesLittleMemory measures what a peer with two sessions, and the windows that belong to them, costs: a
// gateway has thousands. The bound of the whole engine is 12 KiB; this is most of it.
func TestAnIdlePeerTakesLittleMemory(t *testing.T) {
	const peers, most = 300, 6 << 10
	random := seeded(1)
	d := New(Config{Private: newKey(random), Rand: random})
	var actions, theirs Actions
	var windows []*Window
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for range peers {
		other := New(Config{Private: newKey(random), Rand: random})
		if _, err := d.AddPeer(PeerConfig{Public: other.Public()}); err != nil {
			t.Fatal(err)
		}
		p, err := other.AddPeer(PeerConfig{Public: d.Public()})
		if err != nil {
			t.Fatal(err)
		}
		for i := range time.Duration(2) {
			now := time.Unix(1e9, 0).Add(i * RekeyTimeout)
			other.Greet(now, p, &theirs)
			if err := d.Handle(now, here, theirs.Send[0].Message, false, &actions); err != nil {
				t.Fatal(err)
			}
			s := actions.Changes[0].Session
			if err := other.Handle(now, here, actions.Send[0].Message, false, &theirs); err != nil {
				t.Fatal(err)
			}
			d.Confirm(now, s, &actions)
			d.Poll(now, &actions)
			windows = append(windows, &Window{})
		}
	}
	each := (heap() - before) / peers
	t.Logf("%d bytes a peer", each)
	if each > most {
		t.Errorf("a peer takes %d bytes, more than %d", each, most)
	}
	live := 0
	for _, o := range d.indices {
		if o.session != nil {
			live++
		}
	}
	if live != 2*peers {
		t.Errorf("%d sessions of %d peers", live, peers)
	}
	runtime.KeepAlive(d)
	runtime.KeepAlive(windows)
}
