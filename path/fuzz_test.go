package path

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

// A tape gives out a fuzzer's bytes, and zeros when they are at an end.
type tape struct{ b []byte }

func (t *tape) byte() byte {
	if len(t.b) == 0 {
		return 0
	}
	x := t.b[0]
	t.b = t.b[1:]
	return x
}

func (t *tape) uint16() uint16 { return uint16(t.byte())<<8 | uint16(t.byte()) }

func (t *tape) uint64() uint64 {
	var b [8]byte
	for i := range b {
		b[i] = t.byte()
	}
	return binary.BigEndian.Uint64(b[:])
}

// addr is often one of few, so that things meet.
func (t *tape) addr() netip.AddrPort {
	switch x := t.byte(); {
	case x < 64:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, x & 3}), 41641)
	case x < 128:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, t.byte(), t.byte()}), t.uint16())
	case x < 160:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfe, 0x80, 15: x & 3}).WithZone("eth0"), 41641)
	case x < 192:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: t.byte()}), t.uint16())
	case x < 224:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff, 12: 203, 14: 113, 15: x & 3}), 41641)
	}
	return netip.AddrPort{}
}

func (t *tape) via() weft.Via {
	return weft.Via{Method: weft.Method(t.byte() & 7), Link: weft.LinkID(t.byte() & 3), Relay: weft.RelayID(t.byte() & 3), Addr: t.addr()}
}

func (t *tape) candidates() []weft.Candidate {
	list := make([]weft.Candidate, t.byte()&63)
	for i := range list {
		list[i] = weft.Candidate{Addr: t.addr(), Kind: weft.CandidateKind(t.byte() & 7), Link: weft.LinkID(t.byte() & 3)}
	}
	return list
}

func (t *tape) message(last map[uint16]wire.TxID) wire.PeerMessage {
	switch t.byte() % 11 {
	case 7, 8:
		m := wire.Attempt{
			Kind: wire.AttemptKind(1 + t.byte()%4), Way: wire.AttemptWay(1 + t.byte()%2), LeaderOpens: t.byte()&1 == 0,
			Session: uint32(t.byte() & 1), Other: uint32(t.byte() & 1), Number: uint32(t.byte() & 15), Next: t.uint16(), Step: int16(t.uint16()),
		}
		if m.Kind == wire.End {
			m.Result = wire.AttemptResult(1 + t.byte()%4)
		}
		for range t.byte() & 7 {
			m.Ports = append(m.Ports, t.uint16())
		}
		return m
	case 0, 1:
		return wire.Ping{Path: t.uint16() & 63, Tx: wire.TxID{t.byte()}, Padding: int(t.byte())}
	case 2, 3:
		n := t.uint16() & 63
		if tx, ok := last[n]; ok {
			return wire.Pong{Path: n, Tx: tx, Observed: t.addr()}
		}
		return wire.Pong{Path: n, Tx: wire.TxID{t.byte()}}
	case 4:
		return wire.Candidates{Session: uint32(t.byte() & 15), Seq: uint32(t.byte()), WantReply: t.byte()&1 == 0, List: t.candidates(), NAT: t.nat()}
	case 5, 6:
		lines := make([]wire.PathReport, t.byte()&31)
		for i := range lines {
			lines[i] = wire.PathReport{Path: t.uint16() & 63, Packets: t.uint64(), Bytes: t.uint64()}
		}
		return wire.Report{Paths: lines}
	case 10:
		return wire.Links{Session: uint32(t.byte() & 15), Seq: uint32(t.byte()), List: t.nats()}
	}
	return nil
}

func (t *tape) nats() (list []weft.LinkNAT) {
	for range t.byte() & 3 {
		list = append(list, weft.LinkNAT{Link: weft.LinkID(t.byte() & 3), NAT: t.nat()})
	}
	return list
}

func (t *tape) nat() weft.NAT {
	return weft.NAT{
		Mapping: weft.Mapping(t.byte() % 5), Filtering: weft.Filtering(t.byte() & 3), Allocation: weft.Allocation(t.byte() & 3),
		Step: int16(t.uint16()),
	}
}

// FuzzAgent plays a peer, a coordinator and a network that say anything at all.
func FuzzAgent(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 5, 10, 1, 0, 0, 1, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2})
	seed := make([]byte, 600)
	for i := range seed {
		seed[i] = byte(i * 37)
	}
	f.Add(seed)
	for how := range byte(4) { // lengths are searched, answered and doubted
		story := []byte{how << 2, 2, 1, 2, 0, 1, 255}
		for n := range byte(40) {
			story = slices.Concat(story, []byte{5, 1, 2, 0, 1, 255, 0, 0, 0, 0, 0, 0, 0, n, 0, 0, 0, 0, 0, 0, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
			story = append(story, 9, 2, 0, 1, 255, 2, 0, 1, 0, 7, 16)
		}
		f.Add(story)
	}
	// A peer that has attempts made of every kind.
	relayed := []byte{9, 2, 0, 1, 255}
	begin := [][]byte{
		{2},                                        // eager, and does not lead
		{2, 1, 2, 0, 1, 255},                       // SetRelays
		{0, 1, 0, 1, 0},                            // SetLocal
		{12, 4, 2, 2, 0, 1},                        // SetNAT: sequential
		{13, 1, 1},                                 // SetAttested
		relayed, {4, 1, 1, 1, 0, 4, 3, 2, 0, 1, 1}, // Candidates
	}
	for way := range byte(2) {
		for opens := range byte(2) {
			story := slices.Concat(begin...)
			for number := range byte(3) {
				story = slices.Concat(story, relayed, []byte{7, 0, way, opens, 1, 1, number + 1, 100, 0, 0, 1, 0, 1}) // Propose
				story = append(story, 14, 1, 7, 7)                                                                    // Opened
				story = slices.Concat(story, relayed, []byte{7, 2, way, opens, 1, 1, number + 1, 100, 0, 0, 1, 0, 1}) // Begin
				story = append(story, bytes.Repeat([]byte{7}, 30)...)
				story = append(story, 9, 3, 0, 0, 1, 0, 0, 3, 5, 5, 1) // a ping from the attested address
				if number == 1 {
					story = slices.Concat(story, relayed, []byte{7, 3, way, opens, 1, 1, number + 1, 0, 0, 0, 0, 1, 0, 1}) // End
				}
			}
			f.Add(story)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := tape{b}
		now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		how := in.byte()
		a := New(now, Config{Session: 1, Rand: seededRand(1), Eager: how&1 == 0, Leads: how&2 == 0, MTU: []int{0, AssumedMTU, 8904, 1 << 20}[how>>2&3]})
		open := map[weft.LinkID]bool{}
		var owed []Opened
		var out Actions
		last := map[uint16]wire.TxID{}
		learned := map[netip.AddrPort]bool{}
		for len(in.b) > 0 {
			switch in.byte() % 17 {
			case 12:
				a.SetNATs(now, in.nats())
			case 13:
				ips := make([]netip.Addr, in.byte()&7)
				for i := range ips {
					ips[i] = in.addr().Addr()
				}
				a.SetAttested(now, ips)
			case 14, 15:
				if len(owed) > 0 {
					owed[0].Mapped = in.addr()
				}
				a.Opened(now, owed)
				owed = nil
			case 0:
				a.SetLocal(now, in.candidates())
			case 1:
				a.SetRemote(now, in.candidates())
			case 2:
				vias := make([]weft.Via, in.byte()&31)
				for i := range vias {
					vias[i] = in.via()
				}
				a.SetRelays(now, vias)
			case 3:
				a.SetOnline(now, in.byte()&1 == 0)
			case 4:
				a.NetworkChanged(now)
			case 5:
				ts := make([]Traffic, in.byte()&7)
				for i := range ts {
					ts[i] = Traffic{in.via(), in.uint64(), in.uint64(), in.uint64(), in.uint64()}
				}
				a.Observe(now, ts)
			case 6:
				now = now.Add(time.Duration(in.uint16()) * time.Millisecond)
			case 7:
				if !out.Next.IsZero() && out.Next.After(now) {
					now = out.Next
				}
			case 8:
				a.Want(now)
			case 16:
				for _, x := range out.Send {
					if m, ok := x.Message.(wire.Ping); ok && x.Whole {
						a.TooLong(now, x.Via, m)
					}
				}
			default:
				a.Handle(now, in.via(), in.message(last))
				if in.byte()&3 == 0 {
					continue // several before the next Poll
				}
			}
			a.Poll(now, &out)
			for range out.Open.Count {
				link := FirstSpare + weft.LinkID(len(open))
				for open[link] {
					link++
				}
				open[link] = true
				owed = append(owed, Opened{Link: link, Port: uint16(link)})
			}
			for _, link := range out.Close {
				if !open[link] {
					t.Fatalf("closes socket %d, which is not open", link)
				}
				delete(open, link)
			}
			if n := len(a.attempts.spares); n > MaxSockets || len(open) < n {
				t.Fatalf("keeps %d sockets of %d", n, len(open))
			}
			inspect(t, a, now, &out, last, learned)
		}
		a.Snapshot(now)
		a.Opened(now, owed)
		left := len(open)
		a.Leave(now, &out)
		if len(out.Close) != left {
			t.Fatalf("%d of %d sockets are closed in the end", len(out.Close), left)
		}
	})
}

// inspect checks what must be so after every Poll, whatever came before.
func inspect(t *testing.T, a *Agent, now time.Time, out *Actions, last map[uint16]wire.TxID, learned map[netip.AddrPort]bool) {
	if !out.Next.IsZero() && !out.Next.After(now) {
		t.Fatalf("to be called again %v ago", now.Sub(out.Next))
	}
	if n := len(a.pairs); n > MaxDirect+MaxReflexive+MaxRelayed {
		t.Fatalf("%d pairs", n)
	}
	if len(a.inbound.arrivals) > wire.MaxReports || len(a.inbound.flows) > maxFlows || len(a.exchange.retired) > retiredSessions {
		t.Fatal("something grows without bound")
	}
	const (
		burst    = int(budgetBurst*DefaultRate/time.Second) + 1
		measured = 4 // pairs, at most: in use, next of the relays, and one at each end's other links
	)
	whole := map[weft.Via]int{}
	for _, x := range out.Send {
		if !x.Whole {
			continue
		}
		p := a.find(x.Via)
		if whole[x.Via]++; whole[x.Via] > 2*mtuProbes || p == nil || p.health.state == Untested || x.Message.(wire.Ping).Padding > pingPadding(a.cfg.MTU) {
			t.Fatalf("%d probes of length by %v: %+v", whole[x.Via], x.Via, x)
		}
	}
	for _, m := range out.MTUs {
		if p := a.find(m.Via); p == nil || m.Size != a.effective(p) || m.Size <= 0 || m.Size > min(a.cfg.MTU, MaxMTU) {
			t.Fatalf("packets of %d by %v", m.Size, m.Via)
		}
	}
	if p := a.choice.pair; a.cfg.MTU > 0 && p != nil && (p.mtu == nil || p.mtu.told != a.effective(p)) {
		t.Fatalf("nobody was told how long packets may be by %v", p.via)
	}
	if n := len(out.Send); n > maxPending+len(a.pairs)+2*announceVias+3+burst+2*(maxParting+2)+measured*2*mtuProbes {
		t.Fatalf("%d messages at once", n)
	}
	numbers := map[uint16]bool{}
	for _, p := range a.pairs {
		if p.number == 0 || numbers[p.number] {
			t.Fatalf("path number %d is given twice, or is zero", p.number)
		}
		numbers[p.number] = true
		if canonical(p.via) != p.via {
			t.Fatalf("a pair of %+v", p.via)
		}
	}
	for _, x := range out.Send {
		if x.Via.Method == weft.NoMethod || x.Message == nil {
			t.Fatalf("sends %+v", x)
		}
		if m, ok := x.Message.(wire.Ping); ok {
			last[m.Path] = m.Tx
			if ip := x.Via.Addr.Addr(); m.Path == 0 && !slices.Contains(a.targets(), ip) && (a.attempts.run == nil || !slices.Contains(a.attempts.run.targets, ip)) {
				t.Fatalf("sprays %v", x.Via)
			}
		}
	}
	for _, x := range out.Learn {
		if learned[x] {
			t.Fatalf("%v is learned twice", x)
		}
		learned[x] = true
	}
	for _, x := range out.Forget {
		if !learned[x] {
			t.Fatalf("%v is forgotten and was not learned", x)
		}
		delete(learned, x)
	}
	if len(learned) > MaxDirect+MaxReflexive {
		t.Fatalf("%d addresses are said to be the peer's", len(learned))
	}
	v := a.Selected()
	if (v == weft.Via{}) != (a.choice.pair == nil) || a.choice.pair != nil && a.find(v) != a.choice.pair {
		t.Fatalf("selected %v is no pair", v)
	}
	if v.Method == weft.Direct && a.choice.pair.health.state == Untested {
		t.Fatalf("selected %v, which never answered", v)
	}
}
