package path

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func candidates(kind weft.CandidateKind, addrs ...string) (list []weft.Candidate) {
	for _, a := range addrs {
		list = append(list, weft.Candidate{Addr: addr(a), Kind: kind})
	}
	return list
}

// A rig is one agent whose peer is played by the test.
type rig struct {
	*Agent
	t   *testing.T
	now time.Time
	out Actions

	sent    []Transmit // during play
	dials   []Dial     // and since, as hung
	hung    []weft.Via
	answers []answer // under way
}

// An answer is what will come back for a ping.
type answer struct {
	at  time.Time
	via weft.Via
	m   wire.Pong
}

func newRig(t *testing.T) *rig {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &rig{Agent: New(now, Config{Session: 7, Rand: seededRand(1), Eager: true}), t: t, now: now}
	r.SetLocal(now, candidates(weft.Host, "192.168.1.2:41641"))
	r.SetRelays(now, []weft.Via{relayUDP, relayTCP})
	r.SetOnline(now, true)
	return r
}

// poll polls once.
func (r *rig) poll() []Transmit {
	r.Poll(r.now, &r.out)
	r.dials, r.hung = append(r.dials, r.out.Dial...), append(r.hung, r.out.Hang...)
	return slices.Clone(r.out.Send)
}

// pass lets time go by, polling whenever asked to, and returns all that was sent.
func (r *rig) pass(d time.Duration) (sent []Transmit) {
	end := r.now.Add(d)
	sent = r.poll()
	for !r.out.Next.IsZero() && !r.out.Next.After(end) {
		r.now = r.out.Next
		sent = append(sent, r.poll()...)
	}
	r.now = end
	return sent
}

func (r *rig) handle(via weft.Via, m wire.PeerMessage) []Transmit {
	r.Handle(r.now, via, m)
	return r.poll()
}

// pings returns the pings by a way among what was sent.
func pings(sent []Transmit, via weft.Via) (list []wire.Ping) {
	for _, t := range sent {
		if p, ok := t.Message.(wire.Ping); ok && t.Via == via {
			list = append(list, p)
		}
	}
	return list
}

// answer answers the last ping by a way after a time.
func (r *rig) answer(sent []Transmit, via weft.Via, after time.Duration) []Transmit {
	r.t.Helper()
	list := pings(sent, via)
	if len(list) == 0 {
		r.t.Fatalf("no ping by %v", via)
	}
	p := list[len(list)-1]
	r.now = r.now.Add(after)
	return r.handle(via, wire.Pong{Path: p.Path, Tx: p.Tx})
}

// play lets time go by, answering pings by some ways after their round-trip times.
func (r *rig) play(d time.Duration, rtts map[weft.Via]time.Duration) {
	r.sent = nil
	take := func(sent []Transmit) {
		r.sent = append(r.sent, sent...)
		for _, x := range sent {
			if m, ok := x.Message.(wire.Ping); ok && rtts[x.Via] > 0 {
				r.answers = append(r.answers, answer{r.now.Add(rtts[x.Via]), x.Via, wire.Pong{Path: m.Path, Tx: m.Tx}})
			}
		}
		slices.SortStableFunc(r.answers, func(a, b answer) int { return a.at.Compare(b.at) })
	}
	end := r.now.Add(d)
	take(r.poll())
	for {
		next := end
		if !r.out.Next.IsZero() && r.out.Next.Before(next) {
			next = r.out.Next
		}
		if len(r.answers) > 0 && !r.answers[0].at.After(next) {
			a := r.answers[0]
			r.answers = r.answers[1:]
			r.now = latest(r.now, a.at)
			take(r.handle(a.via, a.m))
			continue
		}
		if r.now = next; next.Equal(end) {
			return
		}
		take(r.poll())
	}
}

func direct(s string) weft.Via { return weft.DirectVia(0, addr(s)) }

func addrOf(ip [4]byte, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(ip), port)
}

func addrPort(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 5)
}
