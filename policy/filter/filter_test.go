package filter

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
)

func at(s string) netip.Addr { return netip.MustParseAddr(s) }

func nets(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// The world of the tests: this node is 1 and gateway of the plain node 5; 6 is plain and behind 2; 4 speaks for two networks.
var (
	me     = weft.Node{ID: 1, Name: "me", User: "alice", Addrs: []netip.Addr{at("100.64.0.1"), at("fd00::1")}}
	alice  = weft.Node{ID: 2, Name: "alice", User: "alice", Addrs: []netip.Addr{at("100.64.0.2"), at("fd00::2")}}
	web    = weft.Node{ID: 3, Name: "web", User: "alice", Tags: []string{"tag:web", "tag:prod"}, Addrs: []netip.Addr{at("100.64.0.3"), at("fd00::3")}}
	router = weft.Node{ID: 4, Name: "router", Addrs: []netip.Addr{at("100.64.0.4"), at("fd00::4")}, Routes: nets("192.168.7.0/24", "fd77::/64")}
	guest  = weft.Node{ID: 5, Name: "guest", User: "bob", Gateway: 1, Addrs: []netip.Addr{at("100.64.0.5"), at("fd00::5")}}
	beyond = weft.Node{ID: 6, Name: "beyond", User: "bob", Gateway: 2, Addrs: []netip.Addr{at("100.64.0.6"), at("fd00::6")}}
	lan    = []netip.Addr{at("10.9.0.8"), at("fd99::8")} // behind this node
	far    = []netip.Addr{at("192.168.7.7"), at("fd77::7")}
	world  = []netip.Addr{at("203.0.113.9"), at("2001:db8::9")}
)

func config(rules ...weft.Rule) Config {
	if rules == nil {
		rules = []weft.Rule{}
	}
	return Config{Self: me, Peers: []weft.Node{alice, web, router, guest, beyond}, Rules: rules}
}

func drawRule(t *rapid.T) (r weft.Rule) {
	words := []weft.Source{
		weft.Everybody, weft.Tagged, weft.Untagged, weft.SourceUser("alice"), weft.SourceUser("bob"), weft.SourceUser(""), weft.SourceTag("tag:web"), weft.SourceNode(2),
		weft.SourceNode(5), weft.SourceNode(6), "192.168.7.0/28", "fd77::/64", "100.64.0.2/31", "0.0.0.0/0", "nonsense", "user", "",
	}
	r.From = rapid.SliceOfN(rapid.SampledFrom(words), 1, 3).Draw(t, "from")
	to := nets("100.64.0.1/32", "fd00::1/128", "100.64.0.5/32", "fd00::5/128", "10.9.0.0/24", "fd99::/64", "0.0.0.0/0", "::/0", "100.64.0.0/16")
	r.To = rapid.SliceOfN(rapid.SampledFrom(to), 0, 3).Draw(t, "to")
	ports := []weft.PortRange{
		{Proto: weft.ProtoTCP, First: 1, Last: 2}, {Proto: weft.ProtoUDP, Last: 65535}, {Proto: weft.ProtoICMP, Last: 65535}, {First: 2, Last: 3},
		{Proto: weft.ProtoICMPv6, Last: 65535}, {Proto: weft.ProtoTCP, First: 3, Last: 3}, {Proto: 47, Last: 65535}, {Last: 65535}, {Proto: weft.ProtoSCTP, First: 1, Last: 1},
	}
	r.Ports = rapid.SliceOfN(rapid.SampledFrom(ports), 0, 3).Draw(t, "ports")
	return r
}

// family picks the address of one.
func family(list []netip.Addr, six bool) netip.Addr {
	if six {
		return list[1]
	}
	return list[0]
}

// drawPacket draws what one side may send to the other.
func drawPacket(t *rapid.T, from, to []netip.Addr, six bool) packet {
	p := packet{src: family(from, six), dst: family(to, six), sport: rapid.Uint16Range(1, 3).Draw(t, "sport"), dport: rapid.Uint16Range(1, 3).Draw(t, "dport")}
	icmp := uint8(weft.ProtoICMP)
	if six {
		icmp = weft.ProtoICMPv6
	}
	p.proto = rapid.SampledFrom([]uint8{weft.ProtoTCP, weft.ProtoTCP, weft.ProtoUDP, icmp, weft.ProtoSCTP, 47}).Draw(t, "proto")
	switch p.proto {
	case weft.ProtoTCP:
		p.flags = rapid.SampledFrom([]uint8{flagSYN, flagSYN | flagACK, flagACK, flagACK, flagACK | flagFIN, flagRST, flagRST | flagACK, flagSYN | flagFIN, 0}).Draw(t, "flags")
	case icmp:
		p.dport = p.sport
		p.icmp = rapid.SampledFrom([]uint8{8, 0}).Draw(t, "type")
		if six {
			p.icmp += 128
			if p.icmp == 136 {
				p.icmp = 128
			} else {
				p.icmp = 129
			}
		}
	case 47:
		p.sport, p.dport = 0, 0
	}
	p.payload = rapid.IntRange(0, 40).Draw(t, "payload")
	p.options = rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "options")
	p.id = rapid.Uint32Range(1, 2).Draw(t, "id")
	switch rapid.IntRange(0, 19).Draw(t, "oddity") {
	case 0, 1:
		p.fragment = first
	case 2, 3:
		p.fragment, p.at = later, 8*rapid.IntRange(1, 12).Draw(t, "at")
	case 4:
		p.route = true
	case 5:
		if p.proto != 47 { // its header is nothing to the filter
			p.short = p.payload + rapid.IntRange(1, 8).Draw(t, "short")
		}
	case 6, 7, 8:
		q := drawQuoted(t, p, icmp)
		p = packet{src: p.src, dst: p.dst, proto: icmp, icmp: 3, about: &q}
		if six {
			p.icmp = 1
		}
	}
	return p
}

// drawQuoted makes what an error is about: mostly a packet that the other side sent, whose destination is the error's source.
func drawQuoted(t *rapid.T, p packet, icmp uint8) packet {
	q := p.reversed()
	q.route, q.short, q.fragment, q.about = false, 0, whole, nil
	if rapid.IntRange(0, 5).Draw(t, "about another") == 0 {
		q.dst = family(rapid.SampledFrom([][]netip.Addr{far, alice.Addrs, beyond.Addrs, world}).Draw(t, "whose"), q.dst.Is6())
	}
	return q
}

// relate makes a drawn packet one that has to do with an earlier one, mostly: the same again, an answer, a further fragment, an error
// about it.
func relate(t *rapid.T, p packet, past map[bool][]packet, inwards bool) packet {
	same, other := past[inwards], past[!inwards]
	pick := func(list []packet) (packet, bool) {
		list = slices.DeleteFunc(slices.Clone(list), func(q packet) bool { return q.src.Is6() != p.src.Is6() })
		if len(list) == 0 {
			return packet{}, false
		}
		return list[len(list)-1-rapid.IntRange(0, min(5, len(list)-1)).Draw(t, "which")], true
	}
	switch rapid.IntRange(0, 7).Draw(t, "relation") {
	case 0:
		if q, ok := pick(same); ok {
			return q
		}
	case 1, 2:
		if q, ok := pick(other); ok && q.about == nil && q.fragment == whole {
			q = q.reversed()
			q.flags, q.route, q.short = flagACK, false, 0
			if q.proto == weft.ProtoICMP {
				q.icmp = 0
			}
			if q.proto == weft.ProtoICMPv6 {
				q.icmp = 129
			}
			return q
		}
	case 3:
		if q, ok := pick(same); ok && q.fragment == first {
			q.fragment, q.at, q.short = later, 8*rapid.IntRange(3, 9).Draw(t, "at"), 0
			return q
		}
	case 4:
		if q, ok := pick(other); ok && q.about == nil && q.fragment != later {
			q.route, q.short, q.fragment = false, 0, whole
			e := packet{src: p.src, dst: q.src, proto: weft.ProtoICMP, icmp: 3, about: &q}
			if q.src.Is6() {
				e.proto, e.icmp = weft.ProtoICMPv6, 1
			}
			return e
		}
	}
	return p
}

// TestTheFilterSaysWhatTheOracleSays draws rules, histories of packets both ways, hours that pass and policies that change.
func TestTheFilterSaysWhatTheOracleSays(t *testing.T) {
	seen := map[string]int{}
	for range 12 { // a hundred histories each: what is seldom has to be among them
		rapid.Check(t, histories(seen))
	}
	for _, inwards := range []bool{true, false} {
		for _, got := range []bool{true, false} {
			for _, about := range []bool{true, false} {
				for _, piece := range []piece{whole, first, later} {
					if about && piece != whole {
						continue
					}
					if n := seen[fmt.Sprint(inwards, got, about, piece)]; n == 0 {
						t.Errorf("no history had: inwards %v, allowed %v, ICMP error %v, fragment %v", inwards, got, about, piece)
					}
				}
			}
		}
	}
}

// histories draws one history and compares; seen counts what it had.
func histories(seen map[string]int) func(*rapid.T) {
	return func(t *rapid.T) {
		drawConfig := func() Config {
			c := config(rapid.SliceOfN(rapid.Custom(drawRule), 0, 4).Draw(t, "rules")...)
			if rapid.IntRange(0, 3).Draw(t, "enter") == 0 {
				c.Enter = nets("10.9.0.0/24")
			}
			return c
		}
		o := &oracle{config: drawConfig()}
		p := Compile(o.config)
		generation := uint32(1)
		var f Flows
		var in, out Cache
		now := time.Second
		type sender struct {
			by   weft.Node
			from [][]netip.Addr
		}
		senders := []sender{{alice, [][]netip.Addr{alice.Addrs, beyond.Addrs}}, {web, [][]netip.Addr{web.Addrs}}, {router, [][]netip.Addr{router.Addrs, far}}, {guest, [][]netip.Addr{guest.Addrs}}}
		there := [][]netip.Addr{me.Addrs, me.Addrs, me.Addrs, lan, guest.Addrs, alice.Addrs, far, world}
		past := map[bool][]packet{} // by whether they came in
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			now += rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Millisecond, 300 * time.Millisecond, 1100 * time.Millisecond, 5 * time.Second,
				20 * time.Second, 50 * time.Second, 3 * time.Minute, 6 * time.Minute, 3 * time.Hour}).Draw(t, "later")
			if rapid.IntRange(0, 30).Draw(t, "a new policy") == 0 {
				o.config = drawConfig()
				p = Compile(o.config)
				generation++
				in.Reset()
				out.Reset()
			}
			s := rapid.SampledFrom(senders).Draw(t, "peer")
			six := rapid.Bool().Draw(t, "six")
			remote := rapid.SampledFrom(s.from).Draw(t, "remote")
			var x packet
			var want answer
			var got bool
			var k Packet
			inwards := rapid.Bool().Draw(t, "inwards")
			if inwards {
				x = drawPacket(t, remote, rapid.SampledFrom(there).Draw(t, "local"), six)
				x = relate(t, x, past, true)
				owner := slices.IndexFunc(senders, func(s sender) bool {
					return slices.ContainsFunc(s.from, func(l []netip.Addr) bool { return slices.Contains(l, x.src) })
				})
				if owner < 0 {
					continue // whatever sends that, its address does not belong to it
				}
				s = senders[owner]
				past[true] = append(past[true], x)
				b := x.bytes()
				if got = in.Hit(b, s.by.ID, now); !got {
					got = Parse(b, &k) == Allowed && f.Admit(now, p, generation, s.by.ID, &k) == Allowed
					if got {
						in.Keep(s.by.ID, now)
					}
				}
				want = o.admit(now, s.by, x)
			} else {
				locals := [][]netip.Addr{me.Addrs, me.Addrs, me.Addrs, lan, guest.Addrs, alice.Addrs}
				x = drawPacket(t, rapid.SampledFrom(locals).Draw(t, "local"), remote, six)
				x = relate(t, x, past, false)
				past[false] = append(past[false], x)
				if x.route || x.short > 0 { // that goes out as it is, or not: nobody judges it here
					continue
				}
				b := x.bytes()
				if got = out.Hit(b, s.by.ID, now); !got {
					v := Parse(b, &k)
					if v != Allowed {
						t.Fatalf("%+v: %v", x, v)
					}
					if got = f.Send(now, p, &k) == Allowed; got {
						out.Keep(s.by.ID, now)
					}
				}
				want = o.send(now, x)
			}
			if want == either {
				return
			}
			if got != (want == yes) {
				t.Fatalf("at %v, inwards %v, peer %s, allowed %v: %+v (about %+v)\nflows %+v", now, inwards, s.by.Name, got, x, x.about, o.begun)
			}
			check(t, &f)
			seen[fmt.Sprint(inwards, got, x.about != nil, x.fragment)]++
		}
	}
}

// check looks whether lists, index and counts agree.
func check(t interface{ Fatalf(string, ...any) }, f *Flows) {
	n := 0
	for who, a := range f.accounts {
		count := 0
		for _, l := range []*list{&a.passing, &a.settled} {
			before := int32(0)
			for i := l.oldest; i != 0; i = f.records[i].after {
				r := &f.records[i]
				if r.list != l || r.account != a || r.before != before || f.index[r.key] != i {
					t.Fatalf("record %d of %+v is not where it says", i, who)
				}
				before = i
				count++
			}
			if l.newest != before {
				t.Fatalf("a list of %+v ends elsewhere", who)
			}
		}
		if count != a.n || count > a.most || count == 0 {
			t.Fatalf("account %+v counts %d of %d, there are %d", who, a.n, a.most, count)
		}
		n += count
	}
	if n != len(f.index) {
		t.Fatalf("%d records in accounts, %d in the index", n, len(f.index))
	}
}

func FuzzParse(f *testing.F) {
	for _, p := range []packet{
		{src: at("100.64.0.2"), dst: at("100.64.0.1"), proto: weft.ProtoTCP, sport: 1, dport: 2, flags: flagSYN},
		{src: at("100.64.0.2"), dst: at("100.64.0.1"), proto: weft.ProtoUDP, sport: 1, dport: 2, options: 2},
		{src: at("100.64.0.2"), dst: at("100.64.0.1"), proto: weft.ProtoICMP, icmp: 8, sport: 1, fragment: first, id: 3, payload: 16},
		{src: at("100.64.0.2"), dst: at("100.64.0.1"), proto: weft.ProtoUDP, fragment: later, id: 3, at: 24},
		{src: at("100.64.0.2"), dst: at("100.64.0.1"), proto: weft.ProtoUDP, route: true},
		{src: at("fd00::2"), dst: at("fd00::1"), proto: weft.ProtoTCP, sport: 1, dport: 2, flags: flagSYN, options: 3},
		{src: at("fd00::2"), dst: at("fd00::1"), proto: weft.ProtoUDP, sport: 1, dport: 2, fragment: first, id: 1 << 20},
		{src: at("fd00::2"), dst: at("fd00::1"), proto: weft.ProtoUDP, fragment: later, at: 64, id: 1 << 20},
		{src: at("fd00::2"), dst: at("fd00::1"), proto: weft.ProtoUDP, route: true},
		{src: at("fd00::2"), dst: at("fd00::1"), proto: weft.ProtoICMPv6, icmp: 1, about: &packet{src: at("fd00::1"), dst: at("fd00::2"), proto: weft.ProtoUDP, sport: 5, dport: 2}},
	} {
		f.Add(p.bytes())
	}
	f.Add([]byte{})
	f.Add([]byte{0x4f, 19: 0})
	p := Compile(config(weft.Rule{From: []weft.Source{"*"}, Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: 2, Last: 2}}}))
	none := Compile(config())
	f.Fuzz(func(t *testing.T, b []byte) {
		var k Packet
		var flows Flows
		var c Cache
		v := Parse(b, &k)
		hit := c.Hit(b, 2, 0)
		if hit {
			t.Fatal("an empty cache knows a packet")
		}
		if c.able && v != Allowed && v != Malformed {
			t.Fatalf("the cache takes what is %v", v)
		}
		if v != Allowed {
			return
		}
		if flows.Admit(0, none, 1, 2, &k) == Allowed {
			t.Fatal("nothing is allowed, and this came in")
		}
		if got := flows.Admit(0, p, 2, 2, &k); got == Allowed && (k.proto != weft.ProtoTCP || k.dport != 2 || k.fragment == later || !slices.Contains(me.Addrs, k.dst.netip())) {
			t.Fatalf("%+v came in by a rule about TCP port 2", k)
		}
		flows.Send(0, p, &k)
		check(t, &flows)
	})
}

// fill has a peer begin flows towards port 2 from so many ports, a microsecond apart.
func fill(f *Flows, p *Policy, now *time.Duration, by weft.Node, proto uint8, ports int) {
	var k Packet
	for i := range ports {
		*now += time.Microsecond
		x := packet{src: by.Addrs[0], dst: me.Addrs[0], proto: proto, sport: uint16(i + 1), dport: 2, flags: flagSYN}
		if Parse(x.bytes(), &k) == Allowed {
			f.Admit(*now, p, 1, by.ID, &k)
		}
	}
}

func TestAFloodOfOnePeerPushesOutItsOwnFlowsAlone(t *testing.T) {
	p := Compile(config(weft.Rule{From: []weft.Source{"*"}}))
	var f Flows
	var k Packet
	now := time.Second
	ours := packet{src: me.Addrs[0], dst: alice.Addrs[0], proto: weft.ProtoUDP, sport: 9, dport: 9}
	Parse(ours.bytes(), &k)
	f.Send(now, p, &k)
	theirs := packet{src: web.Addrs[0], dst: me.Addrs[0], proto: weft.ProtoTCP, sport: 9, dport: 9, flags: flagSYN}
	Parse(theirs.bytes(), &k)
	f.Admit(now, p, 1, web.ID, &k)
	fill(&f, p, &now, alice, weft.ProtoTCP, 65535)
	fill(&f, p, &now, alice, weft.ProtoUDP, 65535)
	check(t, &f)
	if a := f.accounts[party{id: alice.ID}]; a.n != mostOther || len(f.records) > 2*mostOther {
		t.Errorf("%d flows of %d are kept of a flood, in %d records", a.n, mostOther, len(f.records))
	}
	closed := Compile(config())
	answer := ours.reversed()
	Parse(answer.bytes(), &k)
	if v := f.Admit(now, closed, 2, alice.ID, &k); v != Allowed {
		t.Errorf("the answer to what was begun before the flood is %v", v)
	}
	if f.accounts[party{id: web.ID}].n != 1 {
		t.Error("another peer's flow is gone")
	}
}

func TestEstablishedConnectionsOutliveThoseThatOnlyBegin(t *testing.T) {
	p := Compile(config(weft.Rule{From: []weft.Source{"*"}}))
	var f Flows
	var k Packet
	now := time.Second
	begin := packet{src: alice.Addrs[0], dst: me.Addrs[0], proto: weft.ProtoTCP, sport: 40000, dport: 9, flags: flagSYN}
	Parse(begin.bytes(), &k)
	f.Admit(now, p, 1, alice.ID, &k)
	answer := begin.reversed()
	answer.flags = flagSYN | flagACK
	Parse(answer.bytes(), &k)
	f.Send(now, p, &k)
	fill(&f, p, &now, alice, weft.ProtoTCP, 30000)
	Parse(begin.bytes(), &k)
	if r := f.find(now, key{local: k.dst, remote: k.src, localPort: 9, remotePort: 40000, proto: weft.ProtoTCP}); r == nil {
		t.Error("a flood of beginnings pushed out an established connection")
	}
	now += 3 * time.Hour
	fill(&f, p, &now, alice, weft.ProtoTCP, 30000)
	if n := len(f.index); n > mostOther {
		t.Errorf("%d flows, most of which are over", n)
	}
	check(t, &f)
}

func TestAMapOfTenThousandAndAThousandRulesShareTables(t *testing.T) {
	p := Compile(crowd())
	tables := map[*line]bool{}
	for _, x := range p.tables {
		if len(x.lines) > 0 {
			tables[&x.lines[0]] = true
		}
	}
	if len(p.tables) != 10000 || len(tables) > 200 {
		t.Errorf("%d peers have %d tables", len(p.tables), len(tables))
	}
}

// crowd is 10,000 peers of 100 users and tags, and 1,000 rules.
func crowd() Config {
	c := Config{Self: me}
	for i := range 10000 {
		n := weft.Node{ID: weft.NodeID(i + 10), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{100, 65, byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})}}
		if n.User = fmt.Sprintf("user%d", i%50); i%2 == 0 {
			n.Tags = []string{fmt.Sprintf("tag:t%d", i%100)}
		}
		c.Peers = append(c.Peers, n)
	}
	for i := range 1000 {
		c.Rules = append(c.Rules, weft.Rule{
			From:  []weft.Source{weft.SourceUser(fmt.Sprintf("user%d", i%50)), weft.SourceTag(fmt.Sprintf("tag:t%d", i%100))},
			To:    []netip.Prefix{netip.PrefixFrom(me.Addrs[0], 32), netip.PrefixFrom(me.Addrs[1], 128)},
			Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: uint16(i), Last: uint16(i)}},
		})
	}
	return c
}

func BenchmarkCompileTenThousandPeersAndAThousandRules(b *testing.B) {
	c := crowd()
	for b.Loop() {
		Compile(c)
	}
}

// BenchmarkJudge is what a packet costs that the cache does not know: of a known flow, and of none that any of 1,000 rules allows.
func BenchmarkJudge(b *testing.B) {
	var rules []weft.Rule
	for i := range 1000 {
		rules = append(rules, weft.Rule{From: []weft.Source{"*"}, To: nets("100.64.0.1/32"), Ports: []weft.PortRange{{Proto: weft.ProtoTCP, First: uint16(2 * i), Last: uint16(2 * i)}}})
	}
	p := Compile(config(rules...))
	for _, c := range []struct {
		name  string
		dport uint16
	}{{"known", 4}, {"refused", 5}} {
		b.Run(c.name, func(b *testing.B) {
			x := packet{src: alice.Addrs[0], dst: me.Addrs[0], proto: weft.ProtoTCP, sport: 9, dport: c.dport, flags: flagACK}
			raw := x.bytes()
			var f Flows
			var k Packet
			b.ReportAllocs()
			for b.Loop() {
				if Parse(raw, &k) == Allowed {
					f.Admit(time.Second, p, 1, alice.ID, &k)
				}
			}
		})
	}
	b.Run("cached", func(b *testing.B) {
		x := packet{src: alice.Addrs[0], dst: me.Addrs[0], proto: weft.ProtoTCP, sport: 9, dport: 4, flags: flagACK}
		raw := x.bytes()
		var c Cache
		c.Hit(raw, 2, time.Second)
		c.Keep(2, time.Second)
		b.ReportAllocs()
		for b.Loop() {
			if !c.Hit(raw, 2, time.Second) {
				b.Fatal("not known")
			}
		}
	})
}
