package rendezvous

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
)

// testNetwork is a network whose shared secret is as given, without the tenth of a second that words take.
func testNetwork(t testing.TB, name string, secret byte) Network {
	t.Helper()
	shared, err := key.SharedFrom([]byte(strings.Repeat(string(rune(secret)), key.Size)))
	if err != nil {
		t.Fatal(err)
	}
	n, err := NewNetwork(name, shared)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A meeting is a rendezvous in virtual time, and whom it meets by pipes.
type meeting struct {
	t      *testing.T
	server *Server
	ctx    context.Context
	all    sync.WaitGroup
}

// meet runs a test in a bubble with a rendezvous.
func meet(t *testing.T, c Config, f func(*testing.T, *meeting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c.Signing, c.Log = key.NewSigning(), slog.New(slog.DiscardHandler)
		s, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		m := &meeting{t: t, server: s, ctx: ctx}
		m.all.Go(func() { s.Run(ctx) })
		f(t, m)
		cancel()
		m.all.Wait()
	})
}

// A guest is a member as the rendezvous sees one, and what it was told.
type guest struct {
	*Conn
	m    *meeting
	net  Network
	node key.NodePublic

	mu      sync.Mutex
	nonce   []byte
	entered bool
	records map[key.NodePublic][]byte
	told    []wire.Members
	ticket  []byte
	refusal *weft.Error
	heard   uint64
	ended   bool
}

// connect opens a stream, and answers nothing.
func (m *meeting) connect(n Network) *guest {
	ours, theirs := net.Pipe()
	g := &guest{Conn: &Conn{conn: ours}, m: m, net: n, node: key.NewPrivate[key.Node]().Public(), records: map[key.NodePublic][]byte{}}
	at := source(netip.MustParseAddr("192.0.2.1"))
	if why := m.server.admit(at); why != nil {
		g.refusal, g.ended = why, true
		ours.Close()
		theirs.Close()
		return g
	}
	m.all.Go(func() {
		defer m.server.leave(at)
		known := sync.OnceFunc(m.server.known)
		defer known()
		m.server.serve(theirs, "pipe", known)
	})
	m.all.Go(g.listen)
	synctest.Wait()
	return g
}

func (g *guest) listen() {
	for {
		said, err := g.Hear()
		g.mu.Lock()
		switch {
		case err != nil:
			g.ended = true
		case said.Challenge != nil:
			g.nonce = said.Challenge.Nonce
		case said.Entered != nil:
			g.entered = true
		case said.Refusal != nil:
			g.refusal = said.Refusal
		case said.Heard != nil:
			g.heard = said.Heard.N
		case said.Members != nil:
			g.told = append(g.told, *said.Members)
			if said.Members.Ticket != nil {
				g.ticket = said.Members.Ticket
			}
			for _, x := range said.Members.Upsert {
				g.records[x.Node] = x.Sealed
			}
			for _, k := range said.Members.Remove {
				delete(g.records, k)
			}
		}
		g.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// enter connects and enters.
func (m *meeting) enter(n Network, known bool) *guest {
	g := m.connect(n)
	if g.refusal == nil {
		g.Say(wire.MemberMessage{Enter: n.Enter(g.nonce, g.node, known)})
		synctest.Wait()
	}
	return g
}

// claim enters and claims a number.
func (m *meeting) claim(n Network, number weft.NodeID) *guest {
	g := m.enter(n, false)
	g.claims(number, fmt.Sprintf("record of %d", number))
	return g
}

func (g *guest) claims(number weft.NodeID, record string) {
	g.Say(wire.MemberMessage{Claim: &wire.Claim{Number: number, Sealed: []byte(record)}})
	g.m.pause(time.Second)
}

func (g *guest) beat(n uint64) { g.Say(wire.MemberMessage{Beat: &wire.Beat{N: n}}) }

// sees returns the records that it knows of.
func (g *guest) sees() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, r := range g.records {
		out = append(out, string(r))
	}
	slices.Sort(out)
	return out
}

// pause lets time pass.
func (m *meeting) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-m.ctx.Done():
	}
	synctest.Wait()
}

func want(t *testing.T, g *guest, records ...string) {
	t.Helper()
	if got := g.sees(); !slices.Equal(got, records) {
		t.Errorf("it sees %q, not %q", got, records)
	}
}

func TestMembersAreToldOfEachOtherAndOfNobodyElse(t *testing.T) {
	meet(t, Config{}, func(t *testing.T, m *meeting) {
		n, other := testNetwork(t, "home", 'a'), testNetwork(t, "away", 'b')
		ann, bob, eve := m.claim(n, 1), m.claim(n, 2), m.claim(other, 1)
		want(t, ann, "record of 2")
		want(t, bob, "record of 1")
		want(t, eve)
		ann.claims(1, "changed")
		want(t, bob, "changed")
		late := m.enter(n, false)
		m.pause(time.Second)
		want(t, late, "changed", "record of 2")
		want(t, bob, "changed") // who only looks is shown to nobody
		ann.Leave()
		m.pause(time.Second)
		want(t, bob)
		want(t, late, "record of 2")
	})
}

func TestAMemberIsForgottenThirtySecondsAfterItsLastBeat(t *testing.T) {
	meet(t, Config{}, func(t *testing.T, m *meeting) {
		n := testNetwork(t, "home", 'a')
		ann, bob := m.claim(n, 1), m.claim(n, 2)
		for i := range uint64(12) { // both live on for a minute
			m.pause(BeatEvery)
			ann.beat(i + 1)
			bob.beat(i + 1)
		}
		synctest.Wait()
		if ann.heard != 12 {
			t.Errorf("beat 12 was answered by %d", ann.heard)
		}
		want(t, ann, "record of 2")
		last := time.Now()
		bob.Close() // killed: nobody hears why
		for len(ann.sees()) > 0 && time.Since(last) < time.Minute {
			m.pause(time.Second)
			ann.beat(99)
		}
		if gone := time.Since(last); gone < Forget || gone > Forget+2*time.Second {
			t.Errorf("it was forgotten after %v", gone)
		}
		want(t, ann)
		ann.Close()
		m.pause(Forget + 2*time.Second)
		if got := len(m.server.networks); got != 0 || m.server.entered != 0 || len(m.server.sources) != 0 || m.server.strangers != 0 {
			t.Errorf("with everybody gone there are %d networks, %d members, %v, %d strangers", got, m.server.entered, m.server.sources, m.server.strangers)
		}
	})
}

func TestASilentStreamEndsAndItsMemberWithIt(t *testing.T) {
	meet(t, Config{}, func(t *testing.T, m *meeting) {
		g := m.claim(testNetwork(t, "home", 'a'), 1)
		m.pause(Forget + 2*time.Second)
		if !g.ended || len(m.server.networks) != 0 {
			t.Errorf("ended: %v, networks: %v", g.ended, m.server.networks)
		}
	})
}

func TestAMistypedSecretIsToldToWhoIsNewAndOnlyWhereTheNameIsKnown(t *testing.T) {
	meet(t, Config{}, func(t *testing.T, m *meeting) {
		right, wrong, elsewhere := testNetwork(t, "home", 'a'), testNetwork(t, "home", 'b'), testNetwork(t, "work", 'b')
		first := m.enter(wrong, false) // there is nobody to be wrong towards
		if !first.entered {
			t.Fatalf("it was refused: %v", first.refusal)
		}
		m.claim(right, 1)
		late := m.enter(wrong, false)
		if weft.CodeOf(late.refusal) != weft.CodeWrongSecret {
			t.Errorf("a wrong secret is told as %v", late.refusal)
		}
		if back := m.enter(wrong, true); !back.entered {
			t.Errorf("who was in its network before is kept out of it by another of that name: %v", back.refusal)
		}
		if other := m.enter(elsewhere, false); !other.entered {
			t.Errorf("another name with that secret: %v", other.refusal)
		}
		if same := m.enter(right, false); !same.entered {
			t.Errorf("the right secret: %v", same.refusal)
		}
	})
}

func TestAProofIsGoodOnTheStreamThatItWasMadeForAlone(t *testing.T) {
	meet(t, Config{}, func(t *testing.T, m *meeting) {
		n := testNetwork(t, "home", 'a')
		a, b := m.connect(n), m.connect(n)
		b.Say(wire.MemberMessage{Enter: n.Enter(a.nonce, a.node, false)})
		synctest.Wait()
		if b.entered || weft.CodeOf(b.refusal) != weft.CodeDenied {
			t.Errorf("with another stream's proof it has entered: %v, %v", b.entered, b.refusal)
		}
		forged := m.connect(n)
		e := testNetwork(t, "home", 'b').Enter(forged.nonce, forged.node, false)
		e.Network = n.Public
		forged.Say(wire.MemberMessage{Enter: e})
		synctest.Wait()
		if forged.entered || weft.CodeOf(forged.refusal) != weft.CodeDenied {
			t.Errorf("with another network's proof it has entered: %v, %v", forged.entered, forged.refusal)
		}
		early := m.connect(n)
		early.Say(wire.MemberMessage{Claim: &wire.Claim{Number: 1, Sealed: []byte("x")}})
		synctest.Wait()
		if weft.CodeOf(early.refusal) != weft.CodeBadRequest || len(m.server.networks) != 0 {
			t.Errorf("who claims before entering hears %v; networks: %v", early.refusal, m.server.networks)
		}
		m.pause(provePatience + time.Second)
		if !a.ended || m.server.strangers != 0 {
			t.Errorf("who proves nothing stays; strangers: %d", m.server.strangers)
		}
	})
}

func TestOneNumberHasOneTicketAndTheNextGetsItWhenItIsFree(t *testing.T) {
	meet(t, Config{}, func(t *testing.T, m *meeting) {
		n := testNetwork(t, "home", 'a')
		ann, bob := m.claim(n, 10), m.claim(n, 10)
		ticket, why := wire.VerifyTicket(ann.ticket, m.server.cfg.Signing.Public(), time.Now())
		if why != wire.RefusedNot || ticket.Node != 10 || ticket.Key != ann.node {
			t.Errorf("its ticket is %+v, %v", ticket, why)
		}
		if bob.ticket != nil {
			t.Error("there are two tickets for one number")
		}
		eve := m.claim(testNetwork(t, "away", 'b'), 10)
		other, _ := wire.VerifyTicket(eve.ticket, m.server.cfg.Signing.Public(), time.Now())
		if other.Network == ticket.Network || other.Key != eve.node {
			t.Errorf("another network's ticket is %+v", other)
		}
		ann.Leave()
		m.pause(time.Second)
		if ticket, why := wire.VerifyTicket(bob.ticket, m.server.cfg.Signing.Public(), time.Now()); why != wire.RefusedNot || ticket.Key != bob.node {
			t.Errorf("the next's ticket is %+v, %v", ticket, why)
		}
		// A ticket is renewed in time, and a number that is given up is given.
		first := bob.ticket
		for range int(ticketLife/2/BeatEvery) + 1 {
			m.pause(BeatEvery)
			bob.beat(1)
			eve.beat(1)
		}
		if string(bob.ticket) == string(first) {
			t.Error("the ticket was not renewed")
		}
		cam := m.claim(n, 10)
		bob.claims(11, "record of 11")
		if ticket, _ := wire.VerifyTicket(bob.ticket, m.server.cfg.Signing.Public(), time.Now()); ticket.Node != 11 {
			t.Errorf("for its new number it has %+v", ticket)
		}
		if cam.ticket == nil {
			t.Error("who waited for a number that was given up has no ticket")
		}
	})
}

func TestTheSameNodeOnANewStreamTakesThePlaceOfItsOld(t *testing.T) {
	meet(t, Config{}, func(t *testing.T, m *meeting) {
		n := testNetwork(t, "home", 'a')
		ann, bob := m.claim(n, 1), m.claim(n, 2)
		again := m.connect(n)
		again.node = ann.node
		again.Say(wire.MemberMessage{Enter: n.Enter(again.nonce, again.node, true)})
		m.pause(time.Second)
		want(t, again, "record of 1", "record of 2") // it is shown its own
		again.claims(1, "anew")
		want(t, bob, "anew")
		if !ann.ended || again.ended {
			t.Errorf("old: %v, new: %v", ann.ended, again.ended)
		}
		m.pause(Forget / 2)
		want(t, bob, "anew") // the old stream's end takes nothing with it
	})
}

func TestStrangersTakeNoMoreThanTheirBounds(t *testing.T) {
	refused := func(t *testing.T, g *guest, words string) {
		t.Helper()
		if weft.CodeOf(g.refusal) != weft.CodeUnavailable || !strings.Contains(g.refusal.Message, words) {
			t.Errorf("it hears %v", g.refusal)
		}
	}
	t.Run("networks", func(t *testing.T) {
		meet(t, Config{Limits: Limits{Networks: 2}}, func(t *testing.T, m *meeting) {
			first := m.claim(testNetwork(t, "a", 'a'), 1)
			m.claim(testNetwork(t, "b", 'b'), 1)
			refused(t, m.enter(testNetwork(t, "c", 'c'), false), "as many networks")
			if g := m.enter(testNetwork(t, "a", 'a'), false); !g.entered {
				t.Errorf("a network that is there takes no more: %v", g.refusal)
			} else {
				g.Close()
			}
			first.Leave()
			m.pause(time.Second)
			if g := m.enter(testNetwork(t, "c", 'c'), false); !g.entered {
				t.Errorf("with one gone, another is refused: %v", g.refusal)
			}
		})
	})
	t.Run("members of all", func(t *testing.T) {
		meet(t, Config{Limits: Limits{Members: 2}}, func(t *testing.T, m *meeting) {
			a := m.claim(testNetwork(t, "a", 'a'), 1)
			m.claim(testNetwork(t, "b", 'b'), 1)
			refused(t, m.claim(testNetwork(t, "c", 'c'), 1), "as many members")
			a.claims(1, "again") // who is in changes its record all the same
			if a.refusal != nil {
				t.Errorf("a member's new record is refused: %v", a.refusal)
			}
		})
	})
	t.Run("members of one", func(t *testing.T) {
		meet(t, Config{Limits: Limits{PerNetwork: 2}}, func(t *testing.T, m *meeting) {
			n := testNetwork(t, "a", 'a')
			m.claim(n, 1)
			m.claim(n, 2)
			refused(t, m.enter(n, false), "2 machines")
		})
	})
	t.Run("streams of one source", func(t *testing.T) {
		meet(t, Config{Limits: Limits{PerSource: 2}}, func(t *testing.T, m *meeting) {
			m.connect(testNetwork(t, "a", 'a'))
			m.enter(testNetwork(t, "a", 'a'), false)
			refused(t, m.connect(testNetwork(t, "a", 'a')), "2 connections from one address")
			m.pause(provePatience + time.Second) // the first proved nothing
			if g := m.enter(testNetwork(t, "a", 'a'), false); !g.entered {
				t.Errorf("after that: %v", g.refusal)
			}
		})
	})
	t.Run("streams that prove nothing", func(t *testing.T) {
		meet(t, Config{Limits: Limits{Strangers: 2}}, func(t *testing.T, m *meeting) {
			n := testNetwork(t, "a", 'a')
			for range 4 {
				if g := m.enter(n, false); !g.entered {
					t.Errorf("a member is counted as a stranger: %v", g.refusal)
				}
			}
			m.connect(n)
			m.connect(n)
			refused(t, m.connect(n), "too many machines are connecting")
		})
	})
	t.Run("other networks", func(t *testing.T) {
		ours := testNetwork(t, "a", 'a')
		meet(t, Config{Networks: []string{ID(ours.Public)}}, func(t *testing.T, m *meeting) {
			theirs := testNetwork(t, "b", 'b')
			refused(t, m.enter(theirs, false), ID(theirs.Public))
			if g := m.enter(ours, false); !g.entered {
				t.Errorf("a network that is served: %v", g.refusal)
			}
		})
	})
	t.Run("words", func(t *testing.T) {
		meet(t, Config{}, func(t *testing.T, m *meeting) {
			n := testNetwork(t, "a", 'a')
			bob, ann := m.claim(n, 2), m.claim(n, 1)
			before, began := len(bob.told), time.Now()
			const said = 100
			for i := range said {
				ann.Say(wire.MemberMessage{Claim: &wire.Claim{Number: 1, Sealed: fmt.Appendf(nil, "%03d", i)}})
				if i%20 == 0 {
					bob.beat(1)
				}
			}
			took := time.Since(began)
			m.pause(2 * time.Second)
			if least := (said - saidBurst - 4) * saidEvery; took < least {
				t.Errorf("%d records were read in %v, not %v", said, took, least)
			}
			want(t, bob, "099")
			if told := len(bob.told) - before; told > said {
				t.Errorf("they were told %d times", told)
			}
		})
	})
	t.Run("bytes", func(t *testing.T) {
		meet(t, Config{Limits: Limits{NetworkRate: 1000}}, func(t *testing.T, m *meeting) {
			n := testNetwork(t, "a", 'a')
			ann := m.claim(n, 1)
			ann.claims(1, strings.Repeat("x", 8000))
			began := time.Now()
			var late []*guest
			for range 3 { // each is to be told 8,000 bytes of it, and the burst is 8,000
				late = append(late, m.enter(n, false))
			}
			for len(late[2].sees()) == 0 && time.Since(began) < time.Minute {
				m.pause(time.Second)
				ann.beat(1)
				for _, g := range late {
					g.beat(1)
				}
			}
			if took := time.Since(began); took < 14*time.Second || took > 20*time.Second {
				t.Errorf("24,000 bytes at 1,000 a second, after 8,000 at once, took %v", took)
			}
			synctest.Wait()
			for _, g := range late {
				if g.heard != 1 || g.ended {
					t.Error("beats are not answered while records wait")
				}
			}
		})
	})
}

func TestARendezvousThatEndsLetsNobodyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Signing: key.NewSigning(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		m := &meeting{t: t, server: s, ctx: context.Background()}
		m.all.Go(func() { s.Run(ctx) })
		g, h := m.claim(testNetwork(t, "a", 'a'), 1), m.connect(testNetwork(t, "a", 'a'))
		cancel()
		m.all.Wait()
		if !g.ended || !h.ended {
			t.Error("a stream goes on")
		}
		if why := s.admit(netip.MustParseAddr("192.0.2.1")); weft.CodeOf(why) != weft.CodeUnavailable {
			t.Errorf("who comes then hears %v", why)
		}
	})
}
