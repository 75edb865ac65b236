package wireguard

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// A mailbag is an end in the middle of things, and genuine messages to it of which it has seen none.
type mailbag struct {
	w    *world // b is who gets them, has a session with a, and has begun another handshake
	list []letter
}

// A letter is a genuine message, and why it is not taken; nil: it is.
type letter struct {
	msg []byte
	err error
}

func newMailbag(t testing.TB) *mailbag {
	t.Helper()
	w := newWorld(t, 5)
	w.a.packet(w.now, packet("a", 0))
	w.run(time.Second)
	old := bytes.Clone(w.record[0])
	w.run(time.Minute)
	w.cut = true // what a makes from here on b gets by hand
	m := &mailbag{}
	take := func(e *end) []byte {
		t.Helper()
		if len(e.actions.Send) != 1 {
			t.Fatalf("%d messages", len(e.actions.Send))
		}
		return bytes.Clone(e.actions.Send[0].Message)
	}
	var initiations []letter
	for range 3 {
		w.now = w.now.Add(RekeyTimeout)
		w.a.d.Greet(w.now, w.a.p, &w.a.actions)
		w.a.d.giveUp(w.now, w.a.p, &Actions{}) // so that it begins anew
		initiations = append(initiations, letter{take(w.a), nil})
	}
	w.b.d.Greet(w.now, w.b.p, &w.b.actions)
	ours := take(w.b)
	w.b.d.Poll(w.now, &w.b.actions)
	if err := w.a.d.Handle(w.now, here, ours, true, &w.a.actions); err != ErrCookie {
		t.Fatal(err)
	}
	m.list = append(m.list, letter{take(w.a), nil})
	if err := w.a.d.Handle(w.now, here, ours, false, &w.a.actions); err != nil {
		t.Fatal(err)
	}
	m.list = append(m.list, letter{take(w.a), nil})
	m.list = append(m.list, initiations...)
	random := seeded(77)
	stranger, err := newEnd("stranger", remembered, newKey(random), PeerConfig{Public: w.b.d.Public()}, random)
	if err != nil {
		t.Fatal(err)
	}
	stranger.d.Greet(w.now, stranger.p, &stranger.actions)
	m.list = append(m.list, letter{take(stranger), ErrUnknownPeer}, letter{old, ErrReplay})
	w.events, m.w = nil, w
	return m
}

// A face is what must not change when a message is not taken.
type face struct {
	current, next *Session
	old           [2]*Session
	handshake     handshake
	heard, sent   timestamp
	at            [7]time.Time
	activity      Activity
	cookie        [macSize]byte
	indices       int
}

func (e *end) face() face {
	p := e.p
	f := face{
		current: p.current, next: p.next, old: p.old, heard: p.heardStamp, sent: p.sentStamp, activity: p.activity,
		at:      [7]time.Time{p.consumed, p.forget, p.retry, p.asked, p.began, p.completedAt, p.unanswered},
		cookie:  p.macs.cookie,
		indices: len(e.d.indices),
	}
	if p.handshake != nil {
		f.handshake = *p.handshake
	}
	return f
}

// FuzzHandle gives a Device genuine messages, changed ones with their first MAC made right again, and inventions. It takes
// the genuine ones, once, and no other; what it does not take leaves no trace and gets no answer but a cookie.
func FuzzHandle(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0})
	f.Add([]byte{0x41, 9, 0x41, 40, 0x82, 100, 0xc3, 1, 2, 0, 2, 0})
	f.Add([]byte{7, 150, 1, 0, 0, 0, 9, 9, 9, 9, 9})
	f.Add([]byte{0x0a, 0, 0x12, 0, 0x1a, 0, 0x4b, 8, 0x24, 0})
	m := newMailbag(f)
	f.Fuzz(func(t *testing.T, ops []byte) {
		e, now := m.w.b.clone(seeded(9)), m.w.now
		first, taken := newMAC(macKeyOf(e.d.public)), map[int]bool{}
		newest := 0 // of the initiations
		var last time.Time
		polled := 0 // seconds: after five the handshake that we began is begun anew
		for steps := 0; len(ops) >= 2 && steps < 40; steps++ {
			// The low bits choose a letter, the next the load and a step in time, the top what is done to it.
			which, load, later, change := int(ops[0]%8), ops[0]&8 != 0, ops[0]&16 != 0, ops[0]>>6
			arg := int(ops[1])
			ops = ops[2:]
			if later {
				now = now.Add(time.Second)
				polled++
			}
			var msg []byte
			var want error
			genuine := false
			if which < len(m.list) {
				msg, want = bytes.Clone(m.list[which].msg), m.list[which].err
				genuine = want == nil
			} else {
				msg = make([]byte, arg)
				ops = ops[copy(msg, ops):]
				if change = 3; len(msg) >= 4 && len(msg) < 140 {
					// Mostly of a length and type that are looked at.
					n := []int{InitiationSize, ResponseSize, CookieReplySize}[arg%3]
					msg = append(msg, make([]byte, n)...)[:n]
					copy(msg, []byte{byte(1 + arg%3), 0, 0, 0})
				}
				genuine = false
			}
			body := len(msg) // that is sealed, or under a MAC
			if len(msg) >= ResponseSize {
				body -= 2 * macSize
			}
			switch change {
			case 1, 3: // one bit is another
				if which < len(m.list) {
					i := arg % body
					msg[i] ^= 1 << (arg / body % 8)
					// The sender's index is under MAC1 alone, which everybody can make who knows our key (section 5.4).
					genuine = genuine && change == 3 && i >= 4 && i < 8 && len(msg) >= ResponseSize
				}
				if change == 1 || len(msg) < ResponseSize {
					break
				}
				sum := first.of(msg[:body]) // and MAC1 of that
				copy(msg[body:], sum[:])
			case 2:
				msg = msg[:len(msg)*arg/256]
				genuine = false
			}
			before := e.face()
			err := e.d.Handle(now, here, msg, load, &e.actions)
			after := e.face()
			switch {
			case err != nil && (after != before || len(e.actions.Changes)+len(e.actions.Keepalives) > 0):
				t.Fatalf("%v, and yet it left a trace: %+v, was %+v", err, after, before)
			case err == ErrCookie:
				if !load || len(e.actions.Send) != 1 || e.actions.Send[0].Peer != nil || len(e.actions.Send[0].Message) != CookieReplySize ||
					len(msg) < CookieReplySize || !bytes.Equal(e.actions.Send[0].Message[4:8], msg[4:8]) {
					t.Fatalf("%x is answered with %+v", msg, e.actions.Send)
				}
				if sum := first.of(msg[:body]); !bytes.Equal(sum[:], msg[body:body+macSize]) {
					t.Fatalf("who does not know our key is sent a cookie: %x", msg)
				}
			case err != nil && len(e.actions.Send) > 0:
				t.Fatalf("%v, and yet it is answered with %x", err, e.actions.Send[0].Message)
			case err == nil && (!genuine || taken[which]):
				t.Fatalf("letter %d was taken; genuine: %v, again: %v", which, genuine, taken[which])
			case err != nil && genuine && !taken[which] && !load:
				// An initiation may be older than one that was taken, or too soon behind it. What answers our own comes too late
				// when that was repeated; and a cookie is of the last message, which a response was if an initiation came.
				excuse := which >= 2 && (which < newest || now.Sub(last) < initiationGap) || which < 2 && polled >= 5 || which == 0 && newest > 0
				if !excuse {
					t.Fatalf("letter %d is not taken: %v", which, err)
				}
			case err != nil && which < len(m.list) && change == 0 && want != nil && !load && err != want:
				t.Fatalf("letter %d: %v, want %v", which, err, want)
			}
			if err == nil {
				if taken[which] = true; which >= 2 {
					newest, last = which, now
				}
				if kind := msg[0]; kind == TypeInitiation && (len(e.actions.Send) != 1 || len(e.actions.Send[0].Message) != ResponseSize) {
					t.Fatalf("an initiation is answered with %+v", e.actions.Send)
				}
			}
			e.d.Poll(now, &e.actions)
		}
		if len(e.d.indices) > 5 {
			t.Fatalf("%d indices are in use", len(e.d.indices))
		}
	})
}

// macKeyOf is the key of MAC1 of messages to a public key.
func macKeyOf(public Key) []byte {
	k := hashOf([]byte(labelMAC1), public[:])
	return k[:]
}

func TestAMessageOfAnotherLengthIsNone(t *testing.T) {
	m := newMailbag(t)
	for i, l := range m.list {
		for n := range 1600 {
			if n == len(l.msg) {
				continue
			}
			b := append(bytes.Clone(l.msg), make([]byte, 1600)...)[:n]
			before := m.w.b.face()
			err := m.w.b.d.Handle(m.w.now, here, b, n%2 == 0, &m.w.b.actions)
			if err != ErrMessage || len(m.w.b.actions.Send) > 0 || m.w.b.face() != before {
				t.Fatalf("letter %d with %d bytes: %v, %d answers", i, n, err, len(m.w.b.actions.Send))
			}
			if _, _, ok := Transport(b); ok {
				t.Fatalf("letter %d with %d bytes is data", i, n)
			}
		}
	}
}

func TestDataOfAnotherLengthOrWithAnyBitTurnedDoesNotOpen(t *testing.T) {
	w := newWorld(t, 1)
	w.talk(time.Second, 3*time.Second)
	sa, sb := w.a.current, w.b.sessions[w.a.current.Remote]
	for _, size := range []int{0, 16, 1408, 1 << 16} {
		packet := bytes.Repeat([]byte{7}, size)
		msg := sa.Seal(make([]byte, 0, size+Overhead), 77, packet)
		open := func(b []byte) bool {
			_, _, ok := Transport(b)
			if !ok {
				return false
			}
			_, ok = sb.Open(nil, bytes.Clone(b))
			return ok
		}
		if !open(msg) {
			t.Fatalf("%d bytes do not open", size)
		}
		for n := 0; n <= len(msg)+64; n += 1 + n/100 {
			if b := append(bytes.Clone(msg), make([]byte, 100)...)[:n]; n != len(msg) && open(b) {
				t.Errorf("%d bytes with %d of %d open", size, n, len(msg))
			}
		}
		for i := 0; i < len(msg); i += 1 + i/100 {
			b := bytes.Clone(msg)
			b[i] ^= 0x10
			// The index is no part of what is sealed: it chooses the session.
			if at := i >= 4 && i < 8; open(b) != at {
				t.Errorf("%d bytes with byte %d changed open: %v", size, i, !at)
			}
		}
	}
}

func TestAClockSetForwardAndBackCostsNobodyASession(t *testing.T) {
	// The paper's responder takes no initiation that is older than the last (CVE-2021-46873): so whoever's clock was ahead when it
	// began a handshake must go on from there. Time itself is monotonic; what changes is the clock on the wall.
	for _, off := range []time.Duration{time.Hour, 365 * 24 * time.Hour, 40 * 365 * 24 * time.Hour} {
		w := newWorld(t, 1)
		initiate := func(wall time.Time) error {
			w.now = w.now.Add(RekeyTimeout)
			w.a.p.asked, w.a.p.retry = time.Time{}, time.Time{}
			w.a.actions.reset()
			w.a.d.begin(wall, w.a.p, &w.a.actions)
			err := w.b.d.Handle(w.now, here, w.a.actions.Send[0].Message, false, &w.b.actions)
			if err == nil {
				err = w.a.d.Handle(w.now, here, w.b.actions.Send[0].Message, false, &w.a.actions)
			}
			return err
		}
		for i, wall := range []time.Duration{0, off, 0, 0, -off, off / 2, 0} {
			if err := initiate(w.now.Add(wall)); err != nil {
				t.Errorf("handshake %d, with the clock off by %v: %v", i, wall, err)
			}
		}
		// And the other side, which never was wrong, can begin at any time.
		w.now = w.now.Add(time.Minute)
		w.b.d.Greet(w.now, w.b.p, &w.b.actions)
		if err := w.a.d.Handle(w.now, here, w.b.actions.Send[0].Message, false, &w.a.actions); err != nil {
			t.Errorf("a handshake of the other side: %v", err)
		}
	}
}

func TestAnInitiatorThatForgotHowFarItsClockWasAheadIsReachedByTheOther(t *testing.T) {
	w := newWorld(t, 1)
	w.now = w.now.AddDate(1, 0, 0) // both were ahead
	w.a.packet(w.now, packet("a", 0))
	w.run(time.Second)
	// a is begun anew with its clock put right, and knows nothing of before.
	random := seeded(50)
	again, err := newEnd("a", remembered, w.a.d.private, PeerConfig{Public: w.b.d.Public(), PSK: w.a.p.psk}, random)
	if err != nil {
		t.Fatal(err)
	}
	right := w.now.AddDate(-1, 0, 0)
	again.d.Greet(right, again.p, &again.actions)
	w.now = w.now.Add(time.Minute)
	if err := w.b.d.Handle(w.now, here, again.actions.Send[0].Message, false, &w.b.actions); err != ErrReplay {
		t.Fatalf("the responder took an old timestamp: %v", err)
	}
	w.b.d.Greet(w.now, w.b.p, &w.b.actions)
	if err := again.d.Handle(right, here, w.b.actions.Send[0].Message, false, &again.actions); err != nil {
		t.Fatalf("b cannot begin: %v", err)
	}
	if err := w.b.d.Handle(w.now, here, again.actions.Send[0].Message, false, &w.b.actions); err != nil {
		t.Fatalf("b refuses the response: %v", err)
	}
}

func TestACookieIsBoundToAddressPortAndTwoMinutes(t *testing.T) {
	w := newWorld(t, 1)
	w.a.d.Greet(w.now, w.a.p, &w.a.actions)
	first := bytes.Clone(w.a.actions.Send[0].Message)
	if err := w.b.d.Handle(w.now, here, first, true, &w.b.actions); err != ErrCookie {
		t.Fatal(err)
	}
	reply := bytes.Clone(w.b.actions.Send[0].Message)
	if got := binary.LittleEndian.Uint32(reply[4:]); got != binary.LittleEndian.Uint32(first[4:]) {
		t.Fatalf("the receiver is %08x", got)
	}
	// A reply to another message than the last is refused: it is sealed over MAC1 (section 5.4.7).
	bad := bytes.Clone(reply)
	bad[40] ^= 1
	if err := w.a.d.Handle(w.now, here, bad, false, &w.a.actions); err != ErrUnauthentic {
		t.Errorf("a changed cookie reply: %v", err)
	}
	if err := w.a.d.Handle(w.now, here, reply, false, &w.a.actions); err != nil {
		t.Fatal(err)
	}
	send := func() []byte {
		w.a.p.asked, w.a.p.retry = time.Time{}, time.Time{}
		w.a.actions.reset()
		w.a.d.begin(w.now, w.a.p, &w.a.actions)
		return bytes.Clone(w.a.actions.Send[0].Message)
	}
	w.now = w.now.Add(6 * time.Second)
	second := send()
	if bytes.Equal(second[len(second)-macSize:], make([]byte, macSize)) {
		t.Fatal("the second initiation has no MAC2")
	}
	if err := w.b.d.Handle(w.now, addrPortPlus(here), second, true, &w.b.actions); err != ErrCookie {
		t.Errorf("from another port: %v", err)
	}
	off := bytes.Clone(second)
	off[len(off)-1] ^= 1
	if err := w.b.d.Handle(w.now, here, off, true, &w.b.actions); err != ErrCookie {
		t.Errorf("with another MAC2: %v", err)
	}
	sieve, secret := NewSieve(w.b.d.Public()), w.b.d.CookieSecret(w.now)
	if !sieve.Proven(&secret, second, here) || sieve.Proven(&secret, first, here) || sieve.Proven(&secret, second, addrPortPlus(here)) ||
		sieve.Proven(&secret, off, here) || sieve.Proven(&Key{1}, second, here) || sieve.Proven(&secret, reply, here) {
		t.Error("the sieve does not tell who has a cookie")
	}
	// Without load MAC2 is not looked at; with load, and right, the handshake goes on.
	if err := w.b.d.Handle(w.now, here, second, true, &w.b.actions); err != nil {
		t.Errorf("with its cookie: %v", err)
	}
	if n := len(w.b.actions.Send); n != 1 || len(w.b.actions.Send[0].Message) != ResponseSize {
		t.Errorf("%d answers", n)
	}
	// Two minutes after it came the sender does not use it any more.
	w.now = w.now.Add(CookieRefreshTime)
	if third := send(); !bytes.Equal(third[len(third)-macSize:], make([]byte, macSize)) {
		t.Error("an old cookie is used")
	}
	if w.b.d.CookieSecret(w.now) == secret {
		t.Error("an old secret is used")
	}
}
