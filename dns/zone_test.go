package dns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"
	"pgregory.net/rapid"
)

func addrs(s ...string) []netip.Addr {
	out := make([]netip.Addr, len(s))
	for i := range s {
		out[i] = netip.MustParseAddr(s[i])
	}
	return out
}

func testZone(t testing.TB) *Zone {
	t.Helper()
	z, err := NewZone("weft.internal", []Record{
		{Name: "laptop", Addrs: addrs("100.64.0.1", "fd7a::1")},
		{Name: "Server", Addrs: addrs("100.64.0.2")},
		{Name: "six", Addrs: addrs("fd7a::3")},
		{Name: "db.rack1", Addrs: addrs("100.64.0.4")},
		{Name: "bare", Addrs: nil},
		{Name: "elsewhere", Addrs: addrs("192.0.2.7")},
	}, netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd7a::/48"))
	if err != nil {
		t.Fatal(err)
	}
	if len(z.Refused()) != 0 {
		t.Fatalf("refused: %v", z.Refused())
	}
	return z
}

// said is a reply in short: the result, then each record of the answer, and "SOA" if
// one says how long a negative answer may be kept.
func said(r *miekg.Msg) string {
	out := []string{miekg.RcodeToString[r.Rcode]}
	for _, rr := range r.Answer {
		out = append(out, strings.Join(strings.Fields(rr.String()), " "))
	}
	for _, rr := range r.Ns {
		if soa, ok := rr.(*miekg.SOA); ok {
			out = append(out, "SOA of "+soa.Hdr.Name)
		}
	}
	return strings.Join(out, "; ")
}

var zoneAnswers = []struct {
	why, name string
	rrtype    uint16
	want      string
}{
	{"an IPv4 address", "laptop.weft.internal.", miekg.TypeA, "NOERROR; laptop.weft.internal. 10 IN A 100.64.0.1"},
	{"an IPv6 address", "laptop.weft.internal.", miekg.TypeAAAA, "NOERROR; laptop.weft.internal. 10 IN AAAA fd7a::1"},
	{"letters are asked back as they came", "LapTop.WEFT.internal.", miekg.TypeA, "NOERROR; LapTop.WEFT.internal. 10 IN A 100.64.0.1"},
	{"and stand for either case in the table", "server.weft.internal.", miekg.TypeA, "NOERROR; server.weft.internal. 10 IN A 100.64.0.2"},
	{"a node without IPv6", "server.weft.internal.", miekg.TypeAAAA, "NOERROR; SOA of weft.internal."},
	{"a node without IPv4", "six.weft.internal.", miekg.TypeA, "NOERROR; SOA of weft.internal."},
	{"a node without addresses", "bare.weft.internal.", miekg.TypeA, "NOERROR; SOA of weft.internal."},
	{"a type that no node has", "laptop.weft.internal.", miekg.TypeMX, "NOERROR; SOA of weft.internal."},
	{"no such node", "nobody.weft.internal.", miekg.TypeA, "NXDOMAIN; SOA of weft.internal."},
	{"nothing below a node", "www.laptop.weft.internal.", miekg.TypeA, "NXDOMAIN; SOA of weft.internal."},
	{"a name of two labels", "db.rack1.weft.internal.", miekg.TypeA, "NOERROR; db.rack1.weft.internal. 10 IN A 100.64.0.4"},
	{"what has a name below it exists", "rack1.weft.internal.", miekg.TypeA, "NOERROR; SOA of weft.internal."},
	{"the domain itself", "weft.internal.", miekg.TypeA, "NOERROR; SOA of weft.internal."},
	{"its start of authority", "weft.internal.", miekg.TypeSOA, "NOERROR; weft.internal. 10 IN SOA weft.internal. hostmaster.weft.internal. 1 10 10 10 10"},
	{"an IPv4 address has a name", "1.0.64.100.in-addr.arpa.", miekg.TypePTR, "NOERROR; 1.0.64.100.in-addr.arpa. 10 IN PTR laptop.weft.internal."},
	{"an IPv6 address has a name", "3" + strings.Repeat(".0", 27) + ".A.7.d.F.ip6.ARPA.", miekg.TypePTR,
		"NOERROR; 3" + strings.Repeat(".0", 27) + ".A.7.d.F.ip6.ARPA. 10 IN PTR six.weft.internal."},
	{"a reverse name has no address", "1.0.64.100.in-addr.arpa.", miekg.TypeA, "NOERROR; SOA of 64.100.in-addr.arpa."},
	{"an address of nobody", "9.9.127.100.in-addr.arpa.", miekg.TypePTR, "NXDOMAIN; SOA of 127.100.in-addr.arpa."},
	{"a network with somebody in it", "0.64.100.in-addr.arpa.", miekg.TypePTR, "NOERROR; SOA of 64.100.in-addr.arpa."},
	{"a network of nobody", "9.65.100.in-addr.arpa.", miekg.TypePTR, "NXDOMAIN; SOA of 65.100.in-addr.arpa."},
	{"its start of authority", "64.100.in-addr.arpa.", miekg.TypeSOA, "NOERROR; 64.100.in-addr.arpa. 10 IN SOA weft.internal. hostmaster.weft.internal. 1 10 10 10 10"},
	{"an IPv6 address of nobody", "4" + strings.Repeat(".0", 27) + ".a.7.d.f.ip6.arpa.", miekg.TypePTR, "NXDOMAIN; SOA of 0.0.0.0.0.0.0.0.a.7.d.f.ip6.arpa."},
	{"an address outside the ranges", "7.2.0.192.in-addr.arpa.", miekg.TypePTR, "NOERROR; 7.2.0.192.in-addr.arpa. 10 IN PTR elsewhere.weft.internal."},
	{"and what else there is to it", "7.2.0.192.in-addr.arpa.", miekg.TypeA, "NOERROR; SOA of 7.2.0.192.in-addr.arpa."},
	{"all there is: RFC 8482", "laptop.weft.internal.", miekg.TypeANY, `NOERROR; laptop.weft.internal. 10 IN HINFO "RFC8482" ""`},
	{"all there is of nobody", "nobody.weft.internal.", miekg.TypeANY, "NXDOMAIN; SOA of weft.internal."},
}

func TestTheZoneAnswersForItsNodes(t *testing.T) {
	z := testZone(t)
	for _, tc := range zoneAnswers {
		reply := new(miekg.Msg).SetReply(new(miekg.Msg).SetQuestion(tc.name, tc.rrtype))
		if !z.answer(reply) {
			t.Errorf("%s: %s is not taken for ours", tc.why, tc.name)
		}
		if diff := cmp.Diff(tc.want, said(reply)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.why, diff)
		}
		if !reply.Authoritative {
			t.Errorf("%s: not authoritative", tc.why)
		}
	}
}

func TestNamesOutsideTheDomainAreNotTheZones(t *testing.T) {
	z := testZone(t)
	for _, name := range []string{".", "internal.", "weft.internal.example.", "aweft.internal.", `laptop\.weft.internal.`,
		"2.0.128.100.in-addr.arpa.", "100.in-addr.arpa.", "8.2.0.192.in-addr.arpa.", "2.0.192.in-addr.arpa.", "example.com."} {
		reply := new(miekg.Msg).SetReply(new(miekg.Msg).SetQuestion(name, miekg.TypeA))
		if z.answer(reply) {
			t.Errorf("%s is taken for ours: %s", name, said(reply))
		}
	}
}

func TestABadNameDoesNotTakeTheOthersAway(t *testing.T) {
	long := strings.Repeat("a", 64)
	z, err := NewZone("Weft.Internal.", []Record{
		{Name: "good", Addrs: addrs("100.64.0.1")},
		{Name: "", Addrs: addrs("100.64.0.2")},
		{Name: "two words", Addrs: addrs("100.64.0.2")},
		{Name: "-dash", Addrs: addrs("100.64.0.2")},
		{Name: "a..b", Addrs: addrs("100.64.0.2")},
		{Name: "é", Addrs: addrs("100.64.0.2")},
		{Name: "\u212a", Addrs: addrs("100.64.0.2")}, // the Kelvin sign, whose lower case is k
		{Name: long, Addrs: addrs("100.64.0.2")},
		{Name: strings.Repeat(long[1:]+".", 4), Addrs: addrs("100.64.0.2")},
		{Name: "GOOD", Addrs: addrs("100.64.0.9")},
		{Name: "also-good_1", Addrs: addrs("100.64.0.3", "100.64.0.3", "::ffff:100.64.0.3", "100.64.0.1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(z.Refused()) != 9 {
		t.Errorf("refused %q, want the nine in the middle", z.Refused())
	}
	if z.Domain() != "weft.internal" {
		t.Errorf("domain %q", z.Domain())
	}
	for name, want := range map[string][]netip.Addr{
		"good":                       addrs("100.64.0.1"),
		"GOOD.weft.internal":         addrs("100.64.0.1"),
		"good.weft.internal.":        addrs("100.64.0.1"),
		"also-good_1":                addrs("100.64.0.3", "100.64.0.1"),
		"good.example.com":           nil,
		"nobody":                     nil,
		"weft.internal":              nil,
		"":                           nil,
		"k":                          nil,
		"x.good.weft.internal":       nil,
		"also-good_1.weft.internal.": addrs("100.64.0.3", "100.64.0.1"),
	} {
		if diff := cmp.Diff(want, z.Lookup(name), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("Lookup(%q) (-want +got):\n%s", name, diff)
		}
	}
	reply := new(miekg.Msg).SetReply(new(miekg.Msg).SetQuestion("1.0.64.100.in-addr.arpa.", miekg.TypePTR))
	z.answer(reply)
	if got := said(reply); !strings.HasSuffix(got, "PTR good.weft.internal.") {
		t.Errorf("an address of two nodes has the name %s", got)
	}

	for _, domain := range []string{"", ".", "two words", "a..b"} {
		if _, err := NewZone(domain, nil); err == nil {
			t.Errorf("the domain %q is accepted", domain)
		}
	}
}

func TestTheReverseNamesOfARangeAreInItsReverseDomains(t *testing.T) {
	for _, tc := range []struct {
		prefix      string
		count       int
		first, last string
	}{
		{"100.64.0.0/10", 64, "64.100.in-addr.arpa", "127.100.in-addr.arpa"},
		{"10.0.0.10/16", 1, "0.10.in-addr.arpa", "0.10.in-addr.arpa"},
		{"192.0.2.0/25", 128, "0.2.0.192.in-addr.arpa", "127.2.0.192.in-addr.arpa"},
		{"192.0.2.9/32", 1, "9.2.0.192.in-addr.arpa", "9.2.0.192.in-addr.arpa"},
		{"0.0.0.0/0", 1, "in-addr.arpa", "in-addr.arpa"},
		{"fd7a:115c:a1e0::/48", 1, "0.e.1.a.c.5.1.1.a.7.d.f.ip6.arpa", "0.e.1.a.c.5.1.1.a.7.d.f.ip6.arpa"},
		{"fc00::/7", 2, "c.f.ip6.arpa", "d.f.ip6.arpa"},
		{"fd00:0:0:11::/59", 2, "0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", "1.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa"},
		{"::/0", 1, "ip6.arpa", "ip6.arpa"},
	} {
		got := ReverseDomains(netip.MustParsePrefix(tc.prefix))
		if len(got) != tc.count || got[0] != tc.first || got[len(got)-1] != tc.last {
			t.Errorf("%s: %d domains from %s to %s, want %d from %s to %s",
				tc.prefix, len(got), got[0], got[len(got)-1], tc.count, tc.first, tc.last)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p := somePrefix(t, "range")
		domains := ReverseDomains(p)
		a := someAddr(t, "address", p.Addr().Is4())
		in := 0
		for _, d := range domains {
			if miekg.IsSubDomain(d+".", reverseName(a)) {
				in++
			}
		}
		if want := p.Contains(a); (in == 1) != want || in > 1 {
			t.Fatalf("%v is in %v: %v; its reverse name is in %d of the domains", a, p, want, in)
		}
	})
}

func someAddr(t *rapid.T, label string, v4 bool) netip.Addr {
	n := 16
	if v4 {
		n = 4
	}
	// Few values, so that addresses fall into ranges.
	a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x10, 0x80, 0xff}), n, n).Draw(t, label))
	return a
}

func somePrefix(t *rapid.T, label string) netip.Prefix {
	a := someAddr(t, label, rapid.Bool().Draw(t, label+" is IPv4"))
	return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, label+" length"))
}
