package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/wire"
)

func TestQuestionsAreAnsweredInARoundTrip(t *testing.T) {
	w := newBindingWorld(t)
	w.run(time.Second)
	tx := [12]byte{7}
	w.b.Locate(w.now, 9)
	w.b.Probe(w.now, tx, 4000, false)
	w.b.Probe(w.now, tx, 4000, true)
	w.run(41 * time.Millisecond)
	got := w.b.Answers()
	want := []Answer{
		{Outcome: Answered, Node: 9, Addr: netip.MustParseAddrPort("192.0.2.7:9")},
		{Outcome: Answered, Tx: tx, Addr: netip.MustParseAddrPort("192.0.2.7:4000")},
		{Outcome: Unable, Tx: tx, Addr: netip.MustParseAddrPort("192.0.2.7:4000")},
	}
	if !slices.Equal(got, want) || w.stun[tx] != 1 {
		t.Errorf("%+v, %d STUN messages", got, w.stun[tx])
	}
	if w.b.Answers() != nil {
		t.Error("they are told twice")
	}
	w.run(time.Minute)
	if len(w.asked) != 3 || w.b.Answers() != nil {
		t.Errorf("%d questions were sent", len(w.asked))
	}
}

func TestAQuestionWaitsForTheBindingAndForItsTurn(t *testing.T) {
	w := newBindingWorld(t)
	for i := range 40 {
		w.b.Locate(w.now, weft.NodeID(1+i))
		w.b.Locate(w.now, weft.NodeID(1+i)) // already asked
	}
	for i := range 12 {
		w.b.Probe(w.now, [12]byte{byte(i)}, 4000, false)
	}
	w.run(20 * time.Second)
	got := w.b.Answers()
	if len(got) != 52 || w.limited != 0 || len(w.asked) != 52 {
		t.Errorf("%d answers to %d questions, of which the relay found %d too many", len(got), len(w.asked), w.limited)
	}
	for _, a := range got {
		if a.Outcome != Answered {
			t.Errorf("%+v", a)
		}
	}
	if !w.b.Bound() || w.b.RTT() != 40*time.Millisecond {
		t.Errorf("meanwhile bound %v, RTT %v", w.b.Bound(), w.b.RTT())
	}
}

func TestWhoAsksTooMuchIsToldSoAndMemoryIsBounded(t *testing.T) {
	w := newBindingWorld(t)
	w.silent = true
	taken := 0
	for i := range 1000 {
		if w.b.Locate(w.now, weft.NodeID(1+i)) {
			taken++
		}
	}
	if taken != maxAsks {
		t.Errorf("%d are taken", taken)
	}
	w.run(time.Hour) // nobody fetches the answers
	if w.b.Locate(w.now, 5000) {
		t.Error("answers that nobody fetches do not count")
	}
	if got := w.b.Answers(); len(got) != maxAsks || got[0].Outcome != Silent {
		t.Errorf("%d answers, the first %+v", len(got), got[0])
	}
	if !w.b.Locate(w.now, 5000) || !w.b.Locate(w.now, 0) || !w.b.Probe(w.now, [12]byte{}, 0, false) {
		t.Error("nothing can be asked any more")
	}
	if w.run(time.Minute); len(w.b.Answers()) != 1 {
		t.Error("nobody has number 0, and nothing port 0")
	}
}

func TestARelayOfAnEarlierVersionIsSilentAndSoIsOneThatIsNotThere(t *testing.T) {
	w := newBindingWorld(t)
	w.early = true
	w.run(time.Second)
	w.b.Locate(w.now, 9)
	w.run(askTries*askWait + time.Millisecond)
	if got := w.b.Answers(); len(got) != 1 || got[0] != (Answer{Outcome: Silent, Node: 9}) || !w.b.Bound() {
		t.Errorf("%+v, bound %v", got, w.b.Bound())
	}
	w = newBindingWorld(t)
	w.silent = true
	w.b.Probe(w.now, [12]byte{1}, 4000, false)
	w.run(askUnbound + time.Millisecond)
	if got := w.b.Answers(); len(got) != 1 || got[0] != (Answer{Outcome: Silent, Tx: [12]byte{1}}) {
		t.Errorf("%+v", got)
	}
}

func TestAnAnswerCountsOnceAndForItsQuestion(t *testing.T) {
	w := newBindingWorld(t)
	w.run(time.Second)
	w.b.Locate(w.now, 9)
	frame, _ := w.b.Poll(w.now)
	q, err := wire.ParseLocate(nil, frame, w.box)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort("192.0.2.1:1")
	other, nonce := wire.Located{Nonce: q.Nonce, Node: 8, Addr: addr}, wire.Located{Nonce: [8]byte{1}, Node: 9, Addr: addr}
	probed := wire.Probed{Nonce: q.Nonce, Addr: addr, Outcome: wire.ProbeSent}
	for name, b := range map[string][]byte{
		"of another node": wire.AppendLocated(nil, other, w.box), "to another question": wire.AppendLocated(nil, nonce, w.box),
		"of another kind": wire.AppendProbed(nil, probed, w.box),
		"of somebody else": func() []byte {
			b := wire.AppendLocated(nil, wire.Located{Nonce: q.Nonce, Node: 9}, w.box)
			b[len(b)-1] ^= 1
			return b
		}(),
	} {
		if w.b.Handle(w.now, b) || w.b.Answers() != nil {
			t.Errorf("an answer %s is taken", name)
		}
	}
	good := wire.AppendLocated(nil, wire.Located{Nonce: q.Nonce, Node: 9, Addr: addr}, w.box)
	if !w.b.Handle(w.now, good) || w.b.Handle(w.now, good) || len(w.b.Answers()) != 1 {
		t.Error("an answer counts never, or twice")
	}
}

// Over any network each question gets one answer, soon, and a true one; and the binding is none the worse.
func TestEveryQuestionHasOneAnswerOverABadNetwork(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newBindingWorld(t)
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		loss := rapid.Float64Range(0, 0.3).Draw(rt, "loss")
		least := time.Duration(rapid.IntRange(1, 400).Draw(rt, "ms")) * time.Millisecond
		jitter := time.Duration(rapid.IntRange(1, 200).Draw(rt, "jitter")) * time.Millisecond
		w.lose = func() bool { return rnd.Float64() < loss }
		w.delay = func() time.Duration { return least + time.Duration(rnd.Int64N(int64(jitter))) }
		w.early = rapid.Bool().Draw(rt, "early")
		nodes, probes := map[weft.NodeID]int{}, map[[12]byte]int{}
		for i := range rapid.IntRange(0, 20).Draw(rt, "locates") {
			w.b.Locate(w.now, weft.NodeID(1+i))
			nodes[weft.NodeID(1+i)] = 0
			w.run(time.Duration(rnd.Int64N(int64(time.Second))))
		}
		for i := range rapid.IntRange(0, 10).Draw(rt, "probes") {
			tx := [12]byte{1, byte(i)}
			w.b.Probe(w.now, tx, 4000, false)
			probes[tx] = 0
		}
		w.run(time.Minute)
		for _, a := range w.b.Answers() {
			switch {
			case a.Outcome == Answered && a.Node != 0 && a.Addr.Port() != uint16(a.Node),
				a.Outcome == Answered && a.Node == 0 && w.stun[a.Tx] == 0, a.Outcome == Answered && w.early:
				rt.Fatalf("%+v", a)
			case a.Node != 0:
				nodes[a.Node]++
			default:
				probes[a.Tx]++
			}
		}
		for id, n := range nodes {
			if n != 1 {
				rt.Fatalf("%d answers of node %d", n, id)
			}
		}
		for tx, n := range probes {
			if n != 1 || w.stun[tx] > askTries {
				rt.Fatalf("%d answers of probe %x, %d sent", n, tx, w.stun[tx])
			}
		}
		for i := 0; i < len(w.asked); i++ {
			if j := i + locateBurst; j < len(w.asked) && w.asked[j].Sub(w.asked[i]) < time.Second {
				rt.Fatalf("%d questions within a second", locateBurst)
			}
		}
	})
}
