package bond_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"weft/bond"
	"weft/wire"
)

// last is the newest feedback; there must be one.
func (m *mailbox) last() *wire.Feedback {
	m.t.Helper()
	if len(m.fed) == 0 {
		m.t.Fatal("there was no feedback")
	}
	return &m.fed[len(m.fed)-1].f
}

func TestFeedbackComesAtOnceAfterAPauseAndIsRepeatedOnce(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	for c := range uint64(3) {
		m.fed = nil
		at := m.now
		m.arrive(1, 7, c)
		m.wait(time.Second)
		if len(m.fed) != 2 || m.fed[0].at != at || m.fed[1].at != at+25*ms {
			t.Fatalf("%d frames tell of one packet", len(m.fed))
		}
		if f := m.fed[1].f; f.Base != c+1 || f.NWords != 0 || f.NPaths != 1 || f.Paths[0].Newest != c {
			t.Errorf("%+v", f)
		}
	}
	if m.r.Wake() != bond.Never {
		t.Error("it wants to be asked")
	}
}

func TestFeedbackComesEvery5MillisecondsWhileDataComesAndHalfAsOftenForLittle(t *testing.T) {
	for _, c := range []struct {
		name  string
		every time.Duration // a packet
		size  int
		skip  uint64 // one of so many counters never comes; 0: all do
		least time.Duration
		most  time.Duration
	}{
		{"little", 2 * ms, 100, 0, 10 * ms, 10 * ms},
		{"much", 500 * time.Microsecond, 1468, 0, 5 * ms, 5 * ms},
		{"a gigabit per second", 12 * time.Microsecond, 1468, 0, 5 * ms, 5*ms + 12*time.Microsecond},
		{"4 Mbit/s", 3 * ms, 1468, 0, 5 * ms, 6 * ms},
		{"losses", ms, 100, 5, 5 * ms, 7 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMailbox(t, bond.ReceiverConfig{})
			packet := payload(7, 0, 20)
			for i := uint64(0); i < 4000; i++ {
				if c.skip == 0 || i%c.skip != 3 {
					m.r.Arrive(m.now, m.now, 1, 7, i, c.size, packet, true)
				}
				m.drain()
				m.now += c.every
			}
			for i := range m.fed[1:] {
				if d := m.fed[i+1].at - m.fed[i].at; i > 0 && (d < c.least || d > c.most) {
					t.Fatalf("feedback %v after the last", d)
				}
			}
		})
	}
}

func TestFeedbackTellsOfEachPathOnItsOwn(t *testing.T) {
	unread := bond.PathID(2)
	m := newMailbox(t, bond.ReceiverConfig{Unread: func(p bond.PathID) bool { return p == unread }})
	m.arrive(1, 7, 10, 11)
	m.wait(3 * ms)
	m.arrive(2, 7, 20)
	at := m.now
	m.wait(2 * ms)
	m.arrive(2, 7, 15) // sent again: older than what came by it
	m.wait(20 * ms)
	f := m.last()
	if f.Session != 7 || f.NPaths != 2 || f.Clock < uint64((at+2*ms)/time.Microsecond) {
		t.Fatalf("%+v", f)
	}
	if p, want := f.Paths[1], (wire.FeedbackPath{Newest: 20, At: uint64(at / time.Microsecond), Packets: 2, Bytes: 264, Unread: true}); p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	if p := f.Paths[0]; p.Newest != 11 || p.Packets != 2 || p.Bytes != 264 || p.Unread {
		t.Errorf("%+v", p)
	}
	for c := uint64(12); c < 400; c++ { // path 2 is silent now
		m.arrive(1, 7, c)
		m.wait(10 * ms)
	}
	if f := m.last(); f.NPaths != 1 || f.Paths[0].Newest != 399 {
		t.Errorf("%+v", f)
	}
}

func TestFeedbackNamesPathsAsTheSenderDoes(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	names := func(want ...uint16) {
		t.Helper()
		m.wait(25 * ms)
		f := m.last()
		for i, w := range want {
			if f.Paths[i].ID != w {
				t.Errorf("path %d is named %d, not %d", i, f.Paths[i].ID, w)
			}
		}
	}
	m.arrive(1, 7, 0)
	m.arrive(2, 7, 1, 5)
	names(0, 0)
	offer := func(p bond.PathID, counter uint64, name uint16) {
		m.r.Named(p, name)
		m.r.Arrive(m.now, m.now, p, 7, counter, 48, nil, false)
	}
	offer(1, 2, 31)
	offer(2, 6, 32)
	m.arrive(1, 7, 7)
	names(31, 32)
	offer(2, 3, 31) // of path 1, sent again by path 2
	m.arrive(1, 7, 8)
	names(31, 32)
	m.r.Named(1, 99) // and what did not arrive names nothing
	m.arrive(2, 7, 9)
	m.arrive(1, 7, 10)
	names(31, 32)
	offer(1, 11, 33) // a new number
	offer(2, 12, 31) // and path 2 has one that another had
	m.arrive(1, 7, 13)
	names(33, 31)
	m.arrive(1, 8, 0)
	offer(1, 14, 31) // of a session that the path has left behind
	m.arrive(1, 8, 1)
	names(33)
}

func TestACopyCountsForItsPathOnce(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1, 2, 3)
	for range 3 {
		m.r.Duplicate(m.now, m.now, 2, 7, 3, 132)
	}
	m.r.Duplicate(m.now, m.now, 2, 7, 1, 132)       // older than what came by it
	m.r.Duplicate(m.now, m.now, 2, 7, 4, 132)       // never came
	m.r.Duplicate(m.now, m.now, 2, 9, 0, 132)       // of no session
	m.r.Duplicate(m.now, m.now, 2, 7, 1<<64-1, 132) // absurd
	m.wait(25 * ms)
	f := m.last()
	if f.NPaths != 2 || f.Paths[1].Newest != 3 || f.Paths[1].Packets != 1 || f.Paths[1].Bytes != 132 {
		t.Errorf("%+v", f.Paths[:f.NPaths])
	}
	if st := m.r.Stats(); st.Duplicates != 7 || st.Delivered != 4 {
		t.Errorf("%+v", st)
	}
}

func TestWhoSendsAgainWhatHadComeIsTold(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1)
	m.wait(time.Second)
	m.fed = nil
	m.r.Duplicate(m.now, m.now, 1, 7, 1, 132)
	m.wait(25 * ms)
	if len(m.fed) != 1 || m.fed[0].f.Base != 2 {
		t.Errorf("%d frames answer it", len(m.fed))
	}
}

func TestFeedbackOfAnOldSessionGoesOnUntilItIsSettled(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0)
	m.arrive(2, 7, 1, 3)
	m.wait(30 * ms)
	m.fed = nil
	m.arrive(1, 8, 0)
	m.arrive(2, 7, 4)
	m.wait(30 * ms)
	seen := map[uint32]wire.Feedback{}
	for _, x := range m.fed {
		seen[x.f.Session] = x.f
	}
	if f := seen[7]; f.Base != 2 || !f.Came(3) || !f.Came(4) || f.Came(2) || f.Paths[1].Newest != 4 {
		t.Errorf("%+v", f)
	}
	if f := seen[8]; f.Base != 0 || !f.Came(0) || f.NPaths != 1 {
		t.Errorf("%+v", f)
	}
}

// TestFeedbackSaysWhatCame whatever comes, and when.
func TestFeedbackSaysWhatCame(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		m := newMailbox(t, bond.ReceiverConfig{})
		start := uint64(rnd.IntN(1 << 20))
		came := map[uint64]bool{}
		top := start
		newest := map[bond.PathID]uint64{}
		sent := start
		var late []uint64
		for range 1500 {
			var c uint64
			if len(late) > 0 && rnd.IntN(4) == 0 {
				c, late = late[0], late[1:]
			} else {
				c = sent
				sent++
				if c > start && rnd.IntN(5) == 0 {
					late = append(late, c)
					continue
				}
			}
			p := bond.PathID(1 + rnd.IntN(3))
			came[c], top, newest[p] = true, max(top, c), max(newest[p], c)
			m.arrive(p, 7, c)
			m.wait(time.Duration(rnd.IntN(int(3 * ms))))
			f := m.last()
			m.fed = m.fed[:0]
			var again wire.Feedback
			if err := wire.ParseFeedback(wire.AppendFeedback(nil, f), &again); err != nil {
				t.Fatal(err)
			}
			m.fed = append(m.fed, fed{m.now, *f})
		}
		m.wait(10 * ms)
		m.arrive(1, 7, sent)
		came[sent], newest[1] = true, sent
		m.wait(25 * ms)
		f := m.last()
		for c := f.Base; c < f.Base+5000; c++ {
			if f.Came(c) != came[c] && c < f.Base+64*wire.MaxFeedbackWords {
				t.Fatalf("seed %d: %d came: %v", seed, c, f.Came(c))
			}
		}
		if want := sent + 1; f.Base > want || f.NWords != int(min((want-f.Base+63)/64, wire.MaxFeedbackWords)) {
			t.Fatalf("seed %d: base %d and %d words, and %d is the newest", seed, f.Base, f.NWords, sent)
		}
		if m.r.Stats().ByPaths+m.r.Stats().ByTime == 0 && len(late) > 0 && f.Base > late[0] {
			t.Fatalf("seed %d: %d is settled, and did not come", seed, late[0])
		}
	}
}

func TestBlocksThatAreNotNeededAreGivenBack(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	packet := make([]byte, 1400)
	c := uint64(1)
	hold := func() {
		c++ // one is missing
		for range 1500 {
			m.r.Arrive(m.now, m.now, 1, 7, c, 1432, packet, false)
			c++
		}
		for m.now += time.Second; m.r.Next(m.now) != nil; {
		}
	}
	m.arrive(1, 7, 0)
	hold()
	if n := testing.AllocsPerRun(1, hold); n > 10 {
		t.Errorf("%v allocations for what fits what is there", n)
	}
	for range 4 { // and now all rests
		m.now += 12 * time.Second
		m.r.Arrive(m.now, m.now, 1, 7, c, 1432, packet, true)
		c++
	}
	if n := testing.AllocsPerRun(1, func() {
		m.now += 36 * time.Second
		for range 3 {
			m.now += 12 * time.Second
			m.r.Arrive(m.now, m.now, 1, 7, c, 1432, packet, true)
			c++
		}
		hold()
	}); n < 1000 {
		t.Errorf("what was held half a minute ago is still there: %v allocations", n)
	}
}

func TestAStreamThatStopsIsToldOfByAnotherPath(t *testing.T) {
	for name, data := range map[string]bool{"data": true, "feedback": false} {
		m := newMailbox(t, bond.ReceiverConfig{})
		var packet []byte
		if data {
			packet = payload(7, 0, 100)
		}
		for c := range uint64(80) {
			if packet != nil {
				packet = payload(7, c, 100)
			}
			m.r.Arrive(m.now, m.now, 1, 7, c, 132, packet, false)
			m.wait(4 * ms)
			if m.r.Elsewhere() {
				t.Fatalf("%s: it is said to have stopped while it flows", name)
			}
		}
		end, before := m.now, len(m.fed)
		m.wait(12 * ms)
		if !m.r.Elsewhere() || len(m.fed) == before {
			t.Errorf("%s: after %v nothing says that no more of it comes", name, m.now-end)
		}
		m.wait(time.Second)
		if n := len(m.fed) - before; n > 3 || m.r.Wake() != bond.Never {
			t.Errorf("%s: %d frames say that no more of it comes", name, n)
		}
	}
}

func TestARepeatedPacketIsAnsweredAtOnceByItsOwnWay(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1, 2, 3)
	m.wait(40 * ms)
	if m.r.Elsewhere() {
		t.Fatal("nothing is amiss")
	}
	before := len(m.fed)
	if !m.r.Duplicate(m.now, m.now, 2, 7, 2, 132) {
		t.Error("a path is not known to work by which something was sent again")
	}
	m.wait(5 * ms)
	if len(m.fed) != before+1 || !m.r.Elsewhere() {
		t.Errorf("%d frames answer who has not heard of what came", len(m.fed)-before)
	}
	if m.r.Duplicate(m.now, m.now, 2, 7, 2, 132) || m.r.Duplicate(m.now, m.now, 2, 7, 1, 132) {
		t.Error("what is old counts for its path")
	}
	m.wait(time.Second)
	m.r.Duplicate(m.now, m.now, 2, 7, 3, 132) // no data flows any more
	m.wait(5 * ms)
	if m.r.Elsewhere() {
		t.Error("two ends without data answer each other's copies by two paths")
	}
}
