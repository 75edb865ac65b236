package wireguard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A world is two ends and what lies between them, in virtual time.
type world struct {
	t      testing.TB
	rng    *rand.Rand
	now    time.Time
	a, b   *end
	events []event
	delay  time.Duration
	loss   float64
	twice  float64       // share that comes twice
	skew   time.Duration // of the delay: packets overtake each other
	cut    bool
	record [][]byte // handshake messages that went by
}

// An event is a message that arrives, or something to do.
type event struct {
	at  time.Time
	to  *end
	msg []byte
	do  func()
}

func newWorld(t testing.TB, seed uint64) *world {
	t.Helper()
	return newWorldOf(t, remembered, seed)
}

func newWorldOf(t testing.TB, with *primitives, seed uint64) *world {
	t.Helper()
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), delay: 20 * time.Millisecond}
	random := seeded(seed)
	ka, kb, psk := newKey(random), newKey(random), newKey(random)
	var err error
	if w.a, err = newEnd("a", with, ka, PeerConfig{Public: publicOf(with, &kb), PSK: psk}, random); err != nil {
		t.Fatal(err)
	}
	if w.b, err = newEnd("b", with, kb, PeerConfig{Public: publicOf(with, &ka), PSK: psk}, random); err != nil {
		t.Fatal(err)
	}
	w.a.send, w.b.send = w.carry(w.b), w.carry(w.a)
	return w
}

// clone is another world that is as this one is, and goes on by itself with random numbers of its own: with those of its
// ancestors it would have their session keys again. Nothing but messages may be under way.
func (w *world) clone(t testing.TB, seed uint64) *world {
	c := *w
	c.t, c.rng = t, rand.New(rand.NewPCG(5, 1))
	c.a, c.b = w.a.clone(seeded(2*seed)), w.b.clone(seeded(2*seed+1))
	c.a.send, c.b.send = c.carry(c.b), c.carry(c.a)
	c.record = slices.Clone(w.record)
	c.events = slices.Clone(w.events)
	for i, x := range c.events {
		if c.events[i].to = c.a; x.to == w.b {
			c.events[i].to = c.b
		}
	}
	return &c
}

func (w *world) carry(to *end) func([]byte) {
	return func(msg []byte) {
		msg = bytes.Clone(msg)
		if msg[0] != TypeTransport {
			w.record = append(w.record, msg)
		}
		copies := 1
		if w.rng.Float64() < w.twice {
			copies = 2
		}
		for range copies {
			if w.cut || w.rng.Float64() < w.loss {
				continue
			}
			late := w.delay
			if w.skew > 0 {
				late += time.Duration(w.rng.Int64N(int64(w.skew)))
			}
			w.insert(event{at: w.now.Add(late), to: to, msg: msg})
		}
	}
}

func (w *world) at(t time.Time, do func()) { w.insert(event{at: t, do: do}) }

func (w *world) insert(x event) {
	i, _ := slices.BinarySearchFunc(w.events, x.at, func(e event, t time.Time) int {
		if e.at.After(t) {
			return 1
		}
		return -1 // behind those of the same time
	})
	w.events = slices.Insert(w.events, i, x)
}

// run goes on for a time.
func (w *world) run(d time.Duration) {
	until := w.now.Add(d)
	for steps := 0; ; steps++ {
		if steps > 1_000_000 {
			w.t.Fatal("the world does not come to rest")
		}
		next := until
		if len(w.events) > 0 && w.events[0].at.Before(next) {
			next = w.events[0].at
		}
		var who *end
		for _, e := range []*end{w.a, w.b} {
			if !e.next.IsZero() && e.next.Before(next) {
				next, who = e.next, e
			}
		}
		if next.After(w.now) {
			w.now = next
		}
		switch {
		case who != nil:
			who.poll(w.now)
		case !next.Before(until):
			return
		default:
			x := w.events[0]
			w.events = w.events[1:]
			if x.do != nil {
				x.do()
			} else {
				x.to.take(w.now, x.msg)
			}
		}
	}
}

func packet(from string, n int) []byte { return fmt.Appendf(nil, "packet %s %06d", from, n) }

// talk has both ends send a packet every so often, for a time, and waits for what is under way.
func (w *world) talk(every, d time.Duration) (sent int) {
	until := w.now.Add(d)
	var say func()
	say = func() {
		w.a.packet(w.now, packet("a", sent))
		w.b.packet(w.now, packet("b", sent))
		sent++
		if next := w.now.Add(every); next.Before(until) {
			w.at(next, say)
		}
	}
	w.at(w.now, say)
	w.run(d + time.Minute)
	return sent
}

func forSeeds(t *testing.T, n uint64, f func(t *testing.T, w *world)) {
	t.Parallel()
	for seed := range n {
		if !t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { f(t, newWorld(t, seed)) }) {
			return
		}
	}
}

func TestNothingIsLostByRekeying(t *testing.T) {
	forSeeds(t, 4, func(t *testing.T, w *world) {
		w.skew = 5 * time.Millisecond
		sent := w.talk(50*time.Millisecond, 20*time.Minute)
		for _, e := range []*end{w.a, w.b} {
			if len(e.got) != sent {
				t.Errorf("%s got %d of %d packets; %v", e.name, len(e.got), sent, e.errs)
			}
			// 20 minutes are ten sessions of two minutes.
			if e.begun < 9 || e.begun > 13 {
				t.Errorf("%s had %d sessions", e.name, e.begun)
			}
		}
	})
}

func TestEndsThatBeginAtOnceAreSoonDone(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, w *world) {
		w.a.packet(w.now, packet("a", 0))
		w.run(time.Duration(w.rng.Int64N(int64(2 * w.delay))))
		w.b.packet(w.now, packet("b", 0))
		w.run(200 * time.Millisecond) // and not RekeyTimeout
		if len(w.a.got) != 1 || len(w.b.got) != 1 {
			t.Fatalf("a has %d packets, b %d; %v %v", len(w.a.got), len(w.b.got), w.a.errs, w.b.errs)
		}
		w.talk(time.Second, 10*time.Minute)
		if n := len(w.a.got); n != 601 {
			t.Errorf("a has %d packets; %v", n, w.a.errs)
		}
	})
}

func TestALossyAndConfusedNetworkDelaysButDoesNotStop(t *testing.T) {
	forSeeds(t, 6, func(t *testing.T, w *world) {
		w.loss, w.twice, w.skew = 0.3, 0.2, 200*time.Millisecond
		sent := w.talk(100*time.Millisecond, 10*time.Minute)
		for _, e := range []*end{w.a, w.b} {
			if len(e.got) < sent*55/100 || len(e.got) > sent {
				t.Errorf("%s got %d of %d packets over a network that loses 30 %%; %d handshakes", e.name, len(e.got), sent, e.begun)
			}
			seen := map[string]bool{}
			for _, b := range e.got {
				if seen[string(b)] {
					t.Fatalf("%s got %q twice", e.name, b)
				}
				seen[string(b)] = true
			}
		}
	})
}

func TestAPeerThatDoesNotAnswerIsAskedFor90SecondsAndThenLeftAlone(t *testing.T) {
	w := newWorld(t, 1)
	w.cut = true
	w.a.packet(w.now, packet("a", 0))
	w.run(time.Hour)
	// Every 5 s and up to a third of a second: 17 to 19 times in 90 s.
	if n := w.a.sent[TypeInitiation]; n < 17 || n > 19 {
		t.Errorf("it was asked %d times", n)
	}
	if w.a.gaveUp != 1 || len(w.a.waiting) != 0 {
		t.Errorf("it was given up %d times, %d packets wait", w.a.gaveUp, len(w.a.waiting))
	}
	w.cut = false
	w.a.packet(w.now, packet("a", 1))
	w.run(time.Second)
	if len(w.b.got) != 1 {
		t.Errorf("a new packet does not begin anew: b has %q", w.b.got)
	}
}

func TestWhoGaveUpWithASessionLeftAsksAgainOnlyForANewPacket(t *testing.T) {
	w := newWorld(t, 1)
	w.talk(time.Second, 3*time.Second)
	w.cut = true
	w.a.packet(w.now, packet("a", 9)) // a minute old; asked for from 78 s to 168 s of 180
	for range 9 {
		w.run(10 * time.Second)
		w.a.packet(w.now, packet("a", 10))
	}
	for w.a.gaveUp == 0 {
		w.run(time.Second)
	}
	if w.a.current == nil {
		t.Fatal("there is no session left")
	}
	asked := w.a.sent[TypeInitiation]
	w.run(time.Hour)
	if n := w.a.sent[TypeInitiation]; n != asked {
		t.Errorf("%d initiations for nothing", n-asked)
	}
}

func TestDataThatIsNotAnsweredBringsAHandshakeAfter15Seconds(t *testing.T) {
	w := newWorld(t, 1)
	w.talk(time.Second, 3*time.Second)
	before := w.a.sent[TypeInitiation] + w.b.sent[TypeInitiation]
	w.cut = true
	w.a.packet(w.now, packet("a", 9))
	w.run(14 * time.Second)
	if n := w.a.sent[TypeInitiation] + w.b.sent[TypeInitiation]; n != before {
		t.Errorf("%d handshakes before their time", n-before)
	}
	w.run(2 * time.Second)
	if n := w.a.sent[TypeInitiation] + w.b.sent[TypeInitiation]; n != before+1 {
		t.Errorf("%d handshakes after 16 s of silence", n-before)
	}
}

func TestWhoOnlyReceivesSaysSoAfter10Seconds(t *testing.T) {
	w := newWorld(t, 1)
	w.a.packet(w.now, packet("a", 0))
	w.run(9 * time.Second)
	if w.a.keepRecv != 0 {
		t.Error("a keepalive came early")
	}
	w.run(2 * time.Second)
	if w.a.keepRecv != 1 {
		t.Errorf("%d keepalives after 11 s", w.a.keepRecv)
	}
	w.run(time.Minute)
	if w.a.keepRecv != 1 || w.a.sent[TypeInitiation] != 1 {
		t.Errorf("an idle tunnel goes on talking: %d keepalives, %d initiations", w.a.keepRecv, w.a.sent[TypeInitiation])
	}
}

func TestAPersistentKeepaliveComesAsOftenAsAsked(t *testing.T) {
	w := newWorld(t, 1)
	w.a.p.SetKeepalive(25 * time.Second)
	w.a.packet(w.now, packet("a", 0))
	w.run(10 * time.Minute)
	// 24 intervals of 25 s; the handshakes in between count as sent.
	if n := w.b.keepRecv; n < 18 || n > 30 {
		t.Errorf("%d keepalives in 10 minutes", n)
	}
	if w.a.current == nil && w.a.begun < 4 {
		t.Errorf("the tunnel was not kept up: %d sessions", w.a.begun)
	}
}

func TestAPersistentKeepaliveBringsUpWhatIsDown(t *testing.T) {
	w := newWorld(t, 1)
	w.cut = true
	w.a.p.SetKeepalive(25 * time.Second)
	w.a.poll(w.now)
	w.run(time.Hour)
	if n := w.a.sent[TypeInitiation]; w.a.gaveUp < 20 || n < 500 {
		t.Errorf("in an hour it was tried %d times and given up %d times", n, w.a.gaveUp)
	}
	w.cut = false
	w.run(30 * time.Second)
	if w.b.current == nil || w.b.keepRecv == 0 {
		t.Error("a tunnel that is to be kept up stays down though nothing is in its way")
	}
}

func TestKeysOfASilentPeerAreForgotten(t *testing.T) {
	w := newWorld(t, 1)
	w.talk(time.Second, 3*time.Second)
	w.cut = true
	w.run(10 * time.Minute)
	for _, e := range []*end{w.a, w.b} {
		if e.p.current != nil || e.p.old != [2]*Session{} || e.p.next != nil || e.p.handshake != nil || len(e.d.indices) != 0 {
			t.Errorf("%s still has keys", e.name)
		}
	}
}

func TestForgettingOldKeysDoesNotStopANewHandshake(t *testing.T) {
	// The keys are forgotten between the first initiation and the first that arrives, or as soon as the peer has answered.
	for _, before := range []time.Duration{30 * time.Second, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond} {
		w := newWorld(t, 1)
		w.a.packet(w.now, packet("a", 0))
		w.run(time.Second)
		w.run(w.a.p.forget.Add(-before).Sub(w.now))
		w.cut = before > time.Second
		w.a.packet(w.now, packet("a", 1))
		w.run(50 * time.Second)
		w.cut = false
		w.run(6 * time.Second)
		if len(w.b.got) != 2 {
			t.Errorf("%v before the keys are forgotten: b got %d packets", before, len(w.b.got))
		}
	}
}

func TestAnInitiationThatIsPlayedBackIsRefused(t *testing.T) {
	w := newWorld(t, 1)
	w.talk(time.Second, 5*time.Minute)
	for _, msg := range w.record {
		for _, e := range []*end{w.a, w.b} {
			have := e.begun
			if err := e.d.Handle(w.now, here, msg, false, &e.actions); err == nil {
				t.Errorf("%s took an old message of type %d", e.name, msg[0])
			}
			if e.do(w.now); e.begun != have {
				t.Errorf("%s has a session by an old message", e.name)
			}
		}
	}
	w.talk(time.Second, time.Minute)
}

func TestAClockThatWasAheadAndIsPutRightKeepsNobodyOut(t *testing.T) {
	w := newWorld(t, 1)
	right := w.now
	w.now = w.now.AddDate(1, 0, 0)
	w.a.packet(w.now, packet("a", 0))
	w.run(time.Second)
	// Both machines' clocks are the world's here; what a's next initiation carries is a matter of a's alone.
	w.now = w.now.Add(10 * time.Minute)
	w.run(time.Millisecond)
	sentBefore := w.a.p.sentStamp
	hs, msg, ok := w.a.d.initiate(nil, w.a.p, 7, stampOf(right))
	if _ = hs; !ok || len(msg) == 0 {
		t.Fatal("no initiation")
	}
	w.a.d.begin(w.now, w.a.p, &w.a.actions)
	if !w.a.p.sentStamp.newer(sentBefore) {
		t.Error("an initiation carries no newer timestamp than the last")
	}
	// With a clock that is a year behind its last timestamp.
	w.a.p.asked = time.Time{}
	last := w.a.p.sentStamp
	w.a.actions.reset()
	w.a.d.begin(right, w.a.p, &w.a.actions)
	if !w.a.p.sentStamp.newer(last) || len(w.a.actions.Send) != 1 {
		t.Fatal("a clock that was put back makes initiations old")
	}
	if err := w.b.d.Handle(w.now.Add(time.Minute), here, w.a.actions.Send[0].Message, false, &w.b.actions); err != nil {
		t.Errorf("the peer refuses it: %v", err)
	}
}

func TestUnderLoadACookieIsAskedForAndReturned(t *testing.T) {
	w := newWorld(t, 1)
	w.a.d.Want(w.now, w.a.p, &w.a.actions)
	first := w.a.actions.Send[0].Message
	err := w.b.d.Handle(w.now, here, first, true, &w.b.actions)
	if err != ErrCookie || len(w.b.actions.Send) != 1 {
		t.Fatalf("under load: %v, %d answers", err, len(w.b.actions.Send))
	}
	reply := w.b.actions.Send[0]
	if !reply.Back || len(reply.Message) != CookieReplySize || len(reply.Message) > len(first) {
		t.Fatalf("the answer is %+v", reply)
	}
	if err := w.a.d.Handle(w.now, here, reply.Message, false, &w.a.actions); err != nil {
		t.Fatal(err)
	}
	if err := w.a.d.Handle(w.now, here, reply.Message, false, &w.a.actions); err == nil {
		t.Error("a cookie reply is taken twice")
	}
	w.now = w.now.Add(6 * time.Second)
	w.a.d.Poll(w.now, &w.a.actions)
	second := w.a.actions.Send[0].Message
	elsewhere := here
	elsewhere = addrPortPlus(elsewhere)
	if err := w.b.d.Handle(w.now, elsewhere, second, true, &w.b.actions); err != ErrCookie {
		t.Errorf("another address's cookie is taken: %v", err)
	}
	if err := w.b.d.Handle(w.now, here, second, true, &w.b.actions); err != nil {
		t.Errorf("with a cookie: %v", err)
	}
	// A cookie ends with the secret that it was made of.
	w.now = w.now.Add(CookieRefreshTime)
	if err := w.b.d.Handle(w.now, here, second, true, &w.b.actions); err != ErrCookie {
		t.Errorf("an old cookie: %v", err)
	}
}

func TestUnderLoadOneAddressBeginsNoMoreThanItsShare(t *testing.T) {
	g := newGuard(&Key{1})
	now := time.Unix(1e9, 0)
	taken := 0
	for range 1000 { // a second of 1,000
		if g.allow(now, here) {
			taken++
		}
		now = now.Add(time.Millisecond)
	}
	if taken < handshakesPerSecond || taken > handshakesPerSecond+handshakesBurst {
		t.Errorf("%d handshakes in a second", taken)
	}
	for i := range 100_000 {
		g.allow(now, addrOf(i))
	}
	if len(g.limited) > maxLimited {
		t.Errorf("%d addresses are remembered", len(g.limited))
	}
}

func TestStrangersGetNotAByteAndCostNoMemory(t *testing.T) {
	w := newWorld(t, 1)
	msgs := [][]byte{make([]byte, InitiationSize), make([]byte, ResponseSize), make([]byte, CookieReplySize), make([]byte, 7), make([]byte, 1500)}
	for i, b := range msgs {
		seeded(uint64(i))(b)
		for kind := range byte(6) {
			copy(b, []byte{kind, 0, 0, 0})
			for _, load := range []bool{false, true} {
				if err := w.b.d.Handle(w.now, here, b, load, &w.b.actions); err == nil || len(w.b.actions.Send) != 0 {
					t.Errorf("%d bytes of type %d: %v, %d answers", len(b), kind, err, len(w.b.actions.Send))
				}
				if n := testing.AllocsPerRun(10, func() { w.b.d.Handle(w.now, here, b, load, &w.b.actions) }); n != 0 {
					t.Errorf("%d bytes of type %d cost %v allocations", len(b), kind, n)
				}
			}
		}
	}
}

func TestSealingAndOpeningAllocateNothing(t *testing.T) {
	w := newWorld(t, 1)
	w.talk(time.Second, 3*time.Second)
	sa, sb := w.a.current, w.b.sessions[w.a.current.Remote]
	buf, packet, counter := make([]byte, 0, 2048), make([]byte, 1420), uint64(1000)
	n := testing.AllocsPerRun(100, func() {
		counter++
		msg := sa.Seal(buf, counter, packet)
		local, c, ok := Transport(msg)
		if !ok || local != sb.Local || c != counter {
			t.Fatal("the header is wrong")
		}
		if _, ok := sb.Open(msg[HeaderSize:HeaderSize], msg); !ok {
			t.Fatal("it does not open")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

func TestTimestampsGrowWithTimeAndWithoutIt(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 999_999_999, time.UTC)
	s := stampOf(at)
	for i := range 200 {
		next := s.after()
		if !next.newer(s) || binary.BigEndian.Uint32(next[8:]) >= 1e9 {
			t.Fatalf("step %d: %x does not come after %x", i, next, s)
		}
		s = next
	}
	if !stampOf(at.Add(time.Minute)).newer(stampOf(at)) {
		t.Error("a later time is not newer")
	}
}
