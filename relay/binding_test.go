package relay

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/key"
	"weft/wire"
)

// bindingWorld is a binding, a relay that answers by the book, and a network between them, in a time of its own.
type bindingWorld struct {
	now     time.Time
	b       *UDPBinding
	node    key.NodePrivate
	relay   key.RelayPrivate
	issuer  key.SigningPrivate
	box     key.Box // the relay's
	cookies cookies
	at      netip.AddrPort // of the node, as the relay sees it
	air     []inAir
	sent    []time.Time
	bounds  int

	delay    func() time.Duration
	lose     func() bool
	lifetime time.Duration
	refuse   wire.Refusal
	silent   bool

	early           bool // the relay is of a version that answers no questions
	locates, probes pace
	asked           []time.Time
	limited         int
	stun            map[[12]byte]int // STUN messages sent, by transaction
}

// inAir is a frame on its way.
type inAir struct {
	at      time.Time
	toRelay bool
	b       []byte
}

func newBindingWorld(t testing.TB) *bindingWorld {
	w := &bindingWorld{
		now: time.Unix(1e9, 0), node: key.NewPrivate[key.Node](), relay: key.NewPrivate[key.Relay](), issuer: key.NewSigning(),
		cookies: newCookies([16]byte{9}), at: netip.MustParseAddrPort("192.0.2.7:4000"),
		delay:    func() time.Duration { return 20 * time.Millisecond },
		lose:     func() bool { return false },
		lifetime: bindLifetime,
		stun:     map[[12]byte]int{},
	}
	w.box, _ = wire.RelayBox(w.relay, w.node.Public())
	var err error
	w.b, err = NewUDPBinding(UDPBindingConfig{NodeKey: w.node, Relay: weft.Relay{Name: "r", Key: w.relay.Public()}, Ticket: w.ticket(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *bindingWorld) ticket(d time.Duration) []byte {
	return wire.SignTicket(nil, wire.Ticket{Node: 5, Key: w.node.Public(), NotAfter: w.now.Add(d)}, w.issuer)
}

func (w *bindingWorld) fly(toRelay bool, b []byte) {
	if b != nil && !w.lose() {
		w.air = append(w.air, inAir{w.now.Add(w.delay()), toRelay, b})
	}
}

// run lets time pass.
func (w *bindingWorld) run(d time.Duration) {
	for end := w.now.Add(d); ; {
		frame, next := w.b.Poll(w.now)
		if frame != nil {
			if kind, _ := wire.KindOf(frame); kind == wire.KindBind {
				w.sent = append(w.sent, w.now)
			}
			w.fly(true, frame)
			continue
		}
		if next.IsZero() || next.After(end) {
			next = end
		}
		slices.SortStableFunc(w.air, func(a, b inAir) int { return a.at.Compare(b.at) })
		if len(w.air) > 0 && !w.air[0].at.After(next) {
			x := w.air[0]
			w.air = w.air[1:]
			w.now = x.at
			if x.toRelay {
				w.fly(false, w.answer(x.b))
			} else {
				w.b.Handle(w.now, x.b)
			}
			continue
		}
		w.now = next
		if !w.now.Before(end) {
			return
		}
	}
}

// answerAsk answers a question as the relay does.
func (w *bindingWorld) answerAsk(b []byte) []byte {
	if w.early || w.silent {
		return nil
	}
	since := w.now.Sub(time.Unix(1e9, 0))
	if q, err := wire.ParseLocate(nil, b, w.box); err == nil {
		w.asked = append(w.asked, w.now)
		if !w.locates.take(since, locateEvery, locateBurst) {
			w.limited++
			return nil
		}
		return wire.AppendLocated(nil, wire.Located{Nonce: q.Nonce, Node: q.Node, Addr: netip.AddrPortFrom(w.at.Addr(), uint16(q.Node))}, w.box)
	}
	q, err := wire.ParseProbe(nil, b, w.box)
	if err != nil {
		return nil
	}
	w.asked = append(w.asked, w.now)
	if !w.probes.take(since, probeEvery, probeBurst) {
		w.limited++
		return nil
	}
	outcome := wire.ProbeSent
	if q.Alternate {
		outcome = wire.ProbeNoPort
	} else {
		w.stun[q.Tx]++
	}
	return wire.AppendProbed(nil, wire.Probed{Nonce: q.Nonce, Addr: netip.AddrPortFrom(w.at.Addr(), q.Port), Outcome: outcome}, w.box)
}

func (w *bindingWorld) answer(b []byte) []byte {
	if kind, _ := wire.KindOf(b); kind == wire.KindLocate || kind == wire.KindProbe {
		return w.answerAsk(b)
	}
	f, err := wire.ParseBind(b)
	if err != nil || w.silent {
		return nil
	}
	since := w.now.Sub(time.Unix(1e9, 0))
	if _, ok := w.cookies.check(f.Cookie, w.at, since); !ok {
		return wire.AppendChallenge(nil, wire.Challenge{Nonce: f.Nonce, Cookie: w.cookies.make(w.at, since)})
	}
	if w.refuse != wire.RefusedNot {
		return wire.AppendRefused(nil, f.Nonce, w.refuse)
	}
	if _, why := wire.VerifyTicket(f.Ticket, w.issuer.Public(), w.now); why != wire.RefusedNot {
		return wire.AppendRefused(nil, f.Nonce, why)
	}
	if !f.Proves(w.box) {
		return nil
	}
	w.bounds++
	return wire.AppendBound(nil, wire.Bound{Nonce: f.Nonce, Lifetime: w.lifetime, Observed: w.at}, w.box)
}

func TestABindingStandsAfterTwoRoundTripsAndIsKept(t *testing.T) {
	w := newBindingWorld(t)
	w.run(81 * time.Millisecond)
	if !w.b.Bound() || w.b.Observed() != w.at || w.b.RTT() != 40*time.Millisecond || len(w.sent) != 2 {
		t.Fatalf("bound %v at %v, RTT %v, after %d Binds", w.b.Bound(), w.b.Observed(), w.b.RTT(), len(w.sent))
	}
	for range 600 {
		w.run(time.Second)
		if !w.b.Bound() || w.b.Lost() {
			t.Fatalf("not bound after %v", w.now.Sub(time.Unix(1e9, 0)))
		}
	}
	for i := 2; i < len(w.sent); i++ {
		if gap := w.sent[i].Sub(w.sent[i-1]); gap > 20*time.Second {
			t.Errorf("the NAT's mapping is left alone for %v", gap)
		}
	}
	if len(w.sent) > 50 {
		t.Errorf("%d Binds in ten minutes", len(w.sent))
	}
}

func TestTheFirstRoundsAreQuickAndThenPatient(t *testing.T) {
	w := newBindingWorld(t)
	w.silent = true
	w.run(time.Second)
	if n := len(w.sent); n < 4 || w.sent[1].Sub(w.sent[0]) > 200*time.Millisecond {
		t.Errorf("%d Binds in the first second: %v", n, w.sent)
	}
	if w.run(9 * time.Second); !w.b.Lost() || w.b.Bound() {
		t.Error("a relay that never answers is not lost")
	}
	before := len(w.sent)
	w.run(10 * time.Minute)
	if n := len(w.sent) - before; n > 45 || n < 30 {
		t.Errorf("%d Binds in ten minutes to a relay that is not there", n)
	}
	w.silent = false
	w.run(bindLast + time.Second)
	if !w.b.Bound() || w.b.Lost() {
		t.Error("the relay is back and the node is not bound")
	}
}

func TestARelayThatGoesAwayIsLostSoonAndFoundAgain(t *testing.T) {
	w := newBindingWorld(t)
	w.run(time.Second)
	w.silent = true
	w.run(renewEvery + 5*time.Second)
	if !w.b.Lost() || w.b.Bound() {
		t.Errorf("5 s after the first renewal without an answer: lost %v, bound %v", w.b.Lost(), w.b.Bound())
	}
	w.silent, w.cookies = false, newCookies([16]byte{10}) // it was restarted
	w.run(bindLast + time.Second)
	if !w.b.Bound() {
		t.Error("not bound again")
	}
}

func TestAnotherAddressIsNoticedAtOnceWhenTheNetworkChanges(t *testing.T) {
	w := newBindingWorld(t)
	w.run(time.Second)
	w.at = netip.MustParseAddrPort("198.51.100.3:5000")
	w.b.Recheck(w.now)
	w.run(100 * time.Millisecond)
	if w.b.Observed() != w.at {
		t.Errorf("still thinks it is at %v", w.b.Observed())
	}
}

func TestARefusalIsToldAndABetterTicketPutsItRight(t *testing.T) {
	w := newBindingWorld(t)
	w.b.SetTicket(w.ticket(-time.Hour))
	w.run(time.Second)
	if w.b.Bound() || w.b.Refused() != wire.RefusedExpired {
		t.Fatalf("bound %v, refused %v", w.b.Bound(), w.b.Refused())
	}
	if n := len(w.sent); n > 3 {
		t.Errorf("%d Binds in a second to a relay that refuses", n)
	}
	w.b.SetTicket(w.ticket(time.Hour))
	w.run(100 * time.Millisecond)
	if !w.b.Bound() || w.b.Refused() != wire.RefusedNot {
		t.Errorf("bound %v, refused %v", w.b.Bound(), w.b.Refused())
	}
	// A refusal while bound, which anybody on the path can forge, does not unbind.
	w.refuse = wire.RefusedRevoked
	w.run(renewEvery + time.Second)
	if !w.b.Bound() || w.b.Refused() != wire.RefusedRevoked {
		t.Errorf("bound %v, refused %v", w.b.Bound(), w.b.Refused())
	}
	w.run(2 * bindLifetime)
	if w.b.Bound() {
		t.Error("refused for longer than the binding lasts, and still bound")
	}
}

func TestWithoutATicketNothingIsSent(t *testing.T) {
	w := newBindingWorld(t)
	w.b.SetTicket(nil)
	w.run(time.Minute)
	if len(w.sent) != 0 {
		t.Errorf("%d Binds", len(w.sent))
	}
	w.b.SetTicket(w.ticket(time.Hour))
	w.run(100 * time.Millisecond)
	if !w.b.Bound() {
		t.Error("not bound with a ticket")
	}
}

func TestARelayThatAsksForEverNewCookiesKeepsNobodyBusy(t *testing.T) {
	w := newBindingWorld(t)
	w.delay = func() time.Duration { return 100 * time.Microsecond }
	w.lose = func() bool { w.cookies = newCookies([16]byte{byte(rand.Uint32())}); return false }
	w.run(time.Minute)
	if n := len(w.sent); n > 40 {
		t.Errorf("%d Binds in a minute", n)
	}
}

// Loss, delay and reordering of any kind: the binding comes to stand, RTTs are true, and it never believes more
// than the relay said.
func TestABindingComesToStandOverABadNetwork(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newBindingWorld(t)
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		loss := rapid.Float64Range(0, 0.25).Draw(rt, "loss")
		least := time.Duration(rapid.IntRange(1, 400).Draw(rt, "ms")) * time.Millisecond
		jitter := time.Duration(rapid.IntRange(1, 200).Draw(rt, "jitter")) * time.Millisecond
		w.lose = func() bool { return rnd.Float64() < loss }
		w.delay = func() time.Duration { return least + time.Duration(rnd.Int64N(int64(jitter))) }
		w.run(3 * time.Minute)
		if w.bounds == 0 {
			rt.Fatalf("loss %.2f, delay %v+%v: no Bound in three minutes", loss, least, jitter)
		}
		if rtt := w.b.RTT(); w.b.Bound() && rtt != 0 && (rtt < 2*least || rtt > 2*(least+jitter)) {
			rt.Fatalf("RTT %v, delay %v to %v", rtt, 2*least, 2*(least+jitter))
		}
		w.lose = func() bool { return true }
		w.run(bindLifetime + time.Second)
		if w.b.Bound() {
			rt.Fatal("bound to a relay that has forgotten the node")
		}
	})
}

func FuzzAnswersToABinding(f *testing.F) {
	f.Add([]byte{})
	f.Add(wire.AppendChallenge(nil, wire.Challenge{}))
	f.Add(wire.AppendRefused(nil, [8]byte{}, wire.RefusedFull))
	f.Add(append([]byte{0xF7, 1, 5, 0}, make([]byte, 58)...))
	w := newBindingWorld(f)
	f.Add(wire.AppendLocated(nil, wire.Located{Node: 9}, w.box))
	f.Add(wire.AppendProbed(nil, wire.Probed{Outcome: wire.ProbeSent}, w.box))
	w.b.SetTicket(w.ticket(1e6 * time.Hour)) // its time goes on from one input to the next
	w.run(time.Second)
	f.Fuzz(func(t *testing.T, b []byte) {
		w.run(renewEvery)
		w.b.Locate(w.now, 9)
		w.b.Probe(w.now, [12]byte{1}, 4000, false)
		frame, _ := w.b.Poll(w.now)
		if w.b.Handle(w.now, b) {
			t.Errorf("%x is taken for an answer", b)
		}
		if frame != nil {
			w.fly(true, frame)
		}
		w.run(time.Second)
		if n := len(w.b.Answers()); n != 2 {
			t.Fatalf("%x leads to %d answers", b, n)
		}
		if !w.b.Bound() {
			t.Fatalf("%x unbinds", b)
		}
	})
}
