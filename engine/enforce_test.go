package engine

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft"
	"weft/engine/segment"
	"weft/host"
	"weft/policy/filter"
)

// policyOf is a node's policy towards another, of these rules.
func policyOf(n, other *node, rules ...weft.Rule) *filter.Policy {
	if rules == nil {
		rules = []weft.Rule{}
	}
	return filter.Compile(filter.Config{
		Self:  weft.Node{ID: n.id, Addrs: []netip.Addr{addrOf(n.id)}},
		Peers: []weft.Node{{ID: other.id, Addrs: []netip.Addr{addrOf(other.id)}}},
		Rules: rules,
	})
}

// manyRules is a policy of a thousand rules, the last of which allows what super and packet make.
func manyRules(n, other *node) *filter.Policy {
	var rules []weft.Rule
	for i := range 999 {
		rules = append(rules, weft.Rule{
			From:  []weft.Source{weft.SourceNode(other.id), weft.SourceTag(fmt.Sprintf("tag:%d", i)), weft.SourcePrefix(netip.PrefixFrom(addrOf(other.id), 32))},
			To:    []netip.Prefix{netip.PrefixFrom(addrOf(n.id), 32)},
			Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: uint16(1000 + 2*i), Last: uint16(1000 + 2*i)}},
		})
	}
	rules = append(rules, weft.Rule{From: []weft.Source{weft.SourceNode(other.id)}, Ports: []weft.PortRange{{Proto: weft.ProtoTCP, Last: 0}, {Proto: 253, Last: 65535}}})
	return policyOf(n, other, rules...)
}

// segmentOf is a TCP segment without data.
func segmentOf(from, to netip.Addr, sport, dport uint16, flags byte) []byte {
	p := packet(from, to, 0, 40)
	p[9] = weft.ProtoTCP
	binary.BigEndian.PutUint16(p[20:], sport)
	binary.BigEndian.PutUint16(p[22:], dport)
	p[32], p[33] = 5<<4, flags
	return p
}

const (
	syn = 2
	ack = 16
	rst = 4
)

// arrives sends packets from a to b, the last of which b lets in, and tells how many of those before came.
func arrives(t *testing.T, a, b *node, last []byte, packets ...[]byte) (n int) {
	t.Helper()
	via := weft.DirectVia(0, a.addr())
	before := counters(b, a.id, via).RxPackets
	for _, p := range packets {
		a.tun.out <- p
	}
	// Flows overtake each other in the sender: the last is sent when the others have come.
	eventually(t, "all packets arrive at the socket", func() bool { return counters(b, a.id, via).RxPackets >= before+uint64(len(packets)) })
	a.tun.out <- last
	for after := time.After(patience); ; {
		select {
		case got := <-b.tun.in:
			if string(got) == string(last) {
				return n
			}
			n++
		case <-after:
			t.Fatalf("what is allowed did not arrive; refused: %v", b.Refused())
		}
	}
}

func TestAModifiedSenderGainsNothing(t *testing.T) {
	a, b := talking(t)
	ssh := weft.Rule{From: []weft.Source{weft.SourceNode(a.id)}, Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: 22, Last: 22}}}
	b.SetPolicy(policyOf(b, a, ssh)) // a goes by none
	at, bt := addrOf(a.id), addrOf(b.id)
	udp := packet(at, bt, 0, 60)
	udp[9] = weft.ProtoUDP
	fragment := segmentOf(at, bt, 5000, 22, syn)
	fragment[7] = 3 // nothing before it came
	routed := append(segmentOf(at, bt, 5000, 22, syn)[:20], 131, 7, 4, 1, 2, 3, 4, 0)
	routed[0] = 0x47
	routed = append(routed, segmentOf(at, bt, 5000, 22, syn)[20:]...)
	binary.BigEndian.PutUint16(routed[2:], uint16(len(routed)))
	spoofed := segmentOf(netip.MustParseAddr("100.64.0.9"), bt, 5000, 22, syn)
	forwarded := segmentOf(at, netip.MustParseAddr("100.64.0.2"), 5000, 22, syn)
	binary.BigEndian.PutUint32(forwarded[16:], 0x0a000001) // 10.0.0.1, which the kernel might forward
	unrelated := packet(at, bt, 0, 68)
	unrelated[9], unrelated[20], unrelated[21], unrelated[22], unrelated[23] = weft.ProtoICMP, 3, 3, 0, 0
	copy(unrelated[28:], segmentOf(bt, at, 80, 5000, ack))
	bad := [][]byte{
		segmentOf(at, bt, 5000, 23, syn), segmentOf(at, bt, 5000, 23, ack), segmentOf(at, bt, 5000, 23, syn|ack), segmentOf(at, bt, 22, 5000, rst),
		udp, packet(at, bt, 3, 100), fragment, routed, spoofed, unrelated,
	}
	// The sender's own engine routes by destination: what it would send by this peer is put there by hand.
	mustSetPeers(t, a, Peer{ID: b.id, Key: b.key.Public(), Allowed: []netip.Prefix{netip.MustParsePrefix("100.64.0.2/32"), netip.MustParsePrefix("10.0.0.0/8")}})
	bad = append(bad, forwarded)
	if n := arrives(t, a, b, segmentOf(at, bt, 5001, 22, syn), bad...); n != 0 {
		t.Errorf("%d packets came that no rule allows", n)
	}
	refused := b.Refused()
	for reason, least := range map[string]uint64{"no_rule": 7, "fragment": 1, "source_route": 1, "unrelated": 1} {
		if refused[reason] != least {
			t.Errorf("%d packets were refused as %s, want %d", refused[reason], reason, least)
		}
	}
	if d := b.Drops(); d.Foreign != 1 {
		t.Errorf("%d packets were foreign", d.Foreign)
	}
	r := b.Refusals(a.id)
	if r.Count != 10 || r.Proto != weft.ProtoTCP || r.Port != 22 || time.Since(r.At) > patience {
		t.Errorf("of a node's refused packets is told %+v", r)
	}
}

func TestAnswersComeInAndWithdrawnRulesEndWhatTheyAllowed(t *testing.T) {
	a, b := talking(t)
	at, bt := addrOf(a.id), addrOf(b.id)
	marker := weft.Rule{From: []weft.Source{"*"}, Ports: []weft.PortRange{{Proto: 253, Last: 65535}}}
	web := weft.Rule{From: []weft.Source{"*"}, Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: 80, Last: 80}}}
	b.SetPolicy(policyOf(b, a, marker))
	a.SetPolicy(policyOf(a, b, marker, web))
	mark := func(from, to *node) []byte { return packet(addrOf(from.id), addrOf(to.id), 77, 60) }
	if n := arrives(t, a, b, mark(a, b), segmentOf(at, bt, 80, 4000, syn|ack)); n != 0 {
		t.Error("an answer came to what nobody had begun")
	}
	if n := arrives(t, b, a, mark(b, a), segmentOf(bt, at, 4000, 80, syn)); n != 1 {
		t.Error("what a rule allows did not come")
	}
	if n := arrives(t, a, b, mark(a, b), segmentOf(at, bt, 80, 4000, syn|ack)); n != 1 {
		t.Error("the answer did not come")
	}
	a.SetPolicy(policyOf(a, b, marker))
	if n := arrives(t, a, b, mark(a, b), segmentOf(at, bt, 80, 4000, ack)); n != 1 {
		t.Error("what b had begun ended for b when a let nothing more in")
	}
	for range 2 { // the answer that was sent meanwhile has not made it one of a's own
		if n := arrives(t, b, a, mark(b, a), segmentOf(bt, at, 4000, 80, ack)); n != 0 {
			t.Error("a rule that was withdrawn still allows what it had allowed")
		}
	}
	a.SetPolicy(policyOf(a, b, marker, web))
	if n := arrives(t, b, a, mark(b, a), segmentOf(bt, at, 4000, 80, ack)); n != 1 {
		t.Error("the rule is there again and allows nothing")
	}
	if n := arrives(t, a, b, mark(a, b), segmentOf(at, bt, 80, 4000, syn)); n != 0 {
		t.Error("a connection was begun where an answer was due")
	}
	a.SetPolicy(nil)
	if n := arrives(t, b, a, mark(b, a), segmentOf(bt, at, 4000, 81, syn)); n != 1 {
		t.Error("without a policy something is refused")
	}
}

// BenchmarkAThousandRules receives runs of 40 segments of a connection: opened, judged, merged and written to a device, in turns without a
// policy and with one of a thousand rules. More-% is what the rules cost: the medians' ratio, of the same run on the same machine. At
// most 3 are meant.
func BenchmarkAThousandRules(b *testing.B) {
	from, to := talking(b)
	to.senders[0].from = &loop{} // nobody is to be measured who takes what is written
	s, o := newBurst(from.Engine), from.Engine.peer(2).current.Load()
	big := super(addrOf(1), addrOf(2), 40)
	buf := make([]byte, len(big)+64)
	read := make([]host.UDPRead, 1)
	receive := func() time.Duration {
		copy(buf, big)
		s.place = s.place[:0]
		p := buf[:len(big)]
		if err := s.cutter.split.Begin(segment.ParseHeader(p), p[segment.HeaderSize:]); err != nil {
			b.Fatal(err)
		}
		size := 0
		for piece := s.cutter.split.Next(); piece != nil; piece = s.cutter.split.Next() {
			at := len(s.place)
			counter, _ := o.take()
			s.place = o.Seal(s.place, counter, piece)
			size = len(s.place) - at
		}
		read[0] = host.UDPRead{Data: s.place, Segment: size, From: from.addr()}
		began := time.Now()
		to.receives(read)
		return time.Since(began)
	}
	policies := [2]*filter.Policy{nil, manyRules(to, from)}
	var took [2][]time.Duration
	for b.Loop() {
		for i, p := range policies {
			to.SetPolicy(p)
			receive() // the first packet is judged, the others are known
			for range 10 {
				took[i] = append(took[i], receive())
			}
		}
	}
	if n := to.Refused()["no_rule"]; n != 0 {
		b.Fatalf("%d packets were refused", n)
	}
	for i := range took {
		slices.Sort(took[i])
	}
	without, with := took[0][len(took[0])/2], took[1][len(took[1])/2]
	b.ReportMetric(100*(float64(with)/float64(without)-1), "more-%")
	b.ReportMetric(float64(without.Nanoseconds())/40, "ns/packet")
}
