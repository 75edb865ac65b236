package dns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"
	"pgregory.net/rapid"
)

func TestADomainsQuestionsGoToItsOwnResolversAndNowhereElse(t *testing.T) {
	rest, restAsked := upstream(t, give("203.0.113.1"))
	corp, _ := upstream(t, give("192.0.2.80"))
	lab, _ := upstream(t, give("192.0.2.81"))
	dead, _ := upstream(t, silent)
	split := NewSplit(map[string][]netip.AddrPort{
		"corp.example": {nobody(t), corp}, "Lab.Corp.Example": {lab}, "ads.example": nil, "gone.example": {dead}, "internal": {rest},
	})
	_, at := start(t, func(c *Config) {
		forwardTo(rest)(c)
		c.Split = split
	}, hasten(20e6, 500e6))
	for _, tc := range []struct{ name, want string }{
		{"corp.example.", "NOERROR; corp.example. 300 IN A 192.0.2.80"},
		{"a.B.corp.EXAMPLE.", "NOERROR; a.B.corp.EXAMPLE. 300 IN A 192.0.2.80"},
		{"x.lab.corp.example.", "NOERROR; x.lab.corp.example. 300 IN A 192.0.2.81"},
		{"ads.example.", "NXDOMAIN; SOA of ads.example."},
		{"x.ads.example.", "NXDOMAIN; SOA of x.ads.example."},
		{"gone.example.", "SERVFAIL"}, // and not the rest's answer: it is none of their business
		{"nobody.weft.internal.", "NXDOMAIN; SOA of weft.internal."},
	} {
		if got := said(exchange(t, "udp", query(tc.name, miekg.TypeA), at)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	if n := restAsked.Load(); n != 0 {
		t.Errorf("of %d questions for others the rest heard", n)
	}
	if got := said(exchange(t, "udp", query("notcorp.example.", miekg.TypeA), at)); got != "NOERROR; notcorp.example. 300 IN A 203.0.113.1" {
		t.Errorf("a name that only ends alike: %s", got)
	}
}

func TestTheLongestDomainThatANameIsInDecides(t *testing.T) {
	label := rapid.SampledFrom([]string{"a", "b", "ab"})
	rapid.Check(t, func(rt *rapid.T) {
		name := func(what string) string {
			return strings.Join(rapid.SliceOfN(label, 1, 4).Draw(rt, what), ".")
		}
		domains := make(map[string][]netip.AddrPort)
		for i := range rapid.IntRange(0, 5).Draw(rt, "domains") {
			domains[name("domain")] = []netip.AddrPort{netip.AddrPortFrom(loopback.Addr(), uint16(i+1))}
		}
		asked := name("name")
		var want []netip.AddrPort
		best, some := -1, false
		for d, list := range domains {
			if (asked == d || strings.HasSuffix(asked, "."+d)) && len(d) > best {
				best, want, some = len(d), list, true
			}
		}
		got, ok := NewSplit(domains).For(asked + ".")
		if ok != some || !slices.Equal(got, want) {
			rt.Fatalf("%s of %v: %v, %v, want %v, %v", asked, domains, got, ok, want, some)
		}
	})
}

func TestWhatIsWrittenDownGoesBeforeANodeOfThatName(t *testing.T) {
	z, err := NewZone("weft.internal", []Record{
		{Name: "printer", Addrs: addrs("100.64.0.66")}, // calls itself that
		{Name: "desk", Addrs: addrs("100.64.0.2", "fd7a::2")},
		{Name: "printer", Addrs: addrs("192.0.2.9"), Written: true},
		{Name: "www", Addrs: addrs("100.64.0.2"), Written: true},
		{Name: "Wiki.Example.", Addrs: addrs("100.64.0.2", "192.0.2.10"), Written: true},
		{Name: "deep.er", Addrs: addrs("192.0.2.9"), Written: true},
		{Name: "bad name.", Addrs: addrs("192.0.2.11"), Written: true},
	}, netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd7a::/48"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"bad name.", "printer"}, z.Refused()); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"wiki.example", "10.2.0.192.in-addr.arpa", "9.2.0.192.in-addr.arpa"}, z.Elsewhere()); diff != "" {
		t.Errorf("elsewhere (-want +got):\n%s", diff)
	}
	for _, tc := range []struct {
		name   string
		rrtype uint16
		want   string
	}{
		{"printer.weft.internal.", miekg.TypeA, "NOERROR; printer.weft.internal. 10 IN A 192.0.2.9"},
		{"wiki.example.", miekg.TypeA, "NOERROR; wiki.example. 10 IN A 100.64.0.2; wiki.example. 10 IN A 192.0.2.10"},
		{"wiki.example.", miekg.TypeAAAA, "NOERROR; SOA of wiki.example."},
		{"wiki.example.", miekg.TypeSOA, "NOERROR; wiki.example. 10 IN SOA weft.internal. hostmaster.weft.internal. 1 10 10 10 10"},
		{"x.wiki.example.", miekg.TypeA, "not ours"},
		{"example.", miekg.TypeA, "not ours"},
		{"deep.er.weft.internal.", miekg.TypeA, "NOERROR; deep.er.weft.internal. 10 IN A 192.0.2.9"},
		{"er.weft.internal.", miekg.TypeA, "NOERROR; SOA of weft.internal."},
		// A node's address is the node's, the others are theirs who were written down.
		{"2.0.64.100.in-addr.arpa.", miekg.TypePTR, "NOERROR; 2.0.64.100.in-addr.arpa. 10 IN PTR desk.weft.internal."},
		{"9.2.0.192.in-addr.arpa.", miekg.TypePTR, "NOERROR; 9.2.0.192.in-addr.arpa. 10 IN PTR printer.weft.internal."},
		{"10.2.0.192.in-addr.arpa.", miekg.TypePTR, "NOERROR; 10.2.0.192.in-addr.arpa. 10 IN PTR wiki.example."},
		{"11.2.0.192.in-addr.arpa.", miekg.TypePTR, "not ours"},
	} {
		reply := new(miekg.Msg).SetReply(query(tc.name, tc.rrtype))
		got := "not ours"
		if z.answer(reply) {
			got = said(reply)
		}
		if got != tc.want {
			t.Errorf("%s %s: %s, want %s", tc.name, miekg.TypeToString[tc.rrtype], got, tc.want)
		}
	}
}
