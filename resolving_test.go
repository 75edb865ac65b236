package weft_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft"
)

func at(list ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range list {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

func record(name string, addrs ...string) weft.DNSRecord {
	r := weft.DNSRecord{Name: name}
	for _, a := range addrs {
		r.Addrs = append(r.Addrs, netip.MustParseAddr(a))
	}
	return r
}

func TestWhatIsWrittenOfNamesIsTakenInOneForm(t *testing.T) {
	got, err := weft.DNS{
		Upstreams: at("9.9.9.9:53", "[2620:fe::fe]:53"),
		Split:     map[string][]netip.AddrPort{"Corp.Example.": at("192.0.2.53:5353"), "ads.example": nil, "168.192.in-addr.arpa": at("192.168.1.1:53")},
		Search:    []string{"Corp.Example", "weft.internal", "corp.example."},
		Records: []weft.DNSRecord{record("www.weft.internal.", "100.64.0.3", "::ffff:100.64.0.3"), record("Printer", "192.0.2.9", "2001:db8::9"),
			record("wiki.example.", "192.0.2.10"), record("a.b", "192.0.2.1"), record("weft.internal.", "192.0.2.1")},
	}.Checked("weft.internal")
	if err != nil {
		t.Fatal(err)
	}
	want := weft.DNS{
		Upstreams: at("9.9.9.9:53", "[2620:fe::fe]:53"),
		Split:     map[string][]netip.AddrPort{"corp.example": at("192.0.2.53:5353"), "ads.example": {}, "168.192.in-addr.arpa": at("192.168.1.1:53")},
		Search:    []string{"corp.example"},
		Records: []weft.DNSRecord{record("a.b", "192.0.2.1"), record("printer", "192.0.2.9", "2001:db8::9"), record("weft.internal.", "192.0.2.1"),
			record("wiki.example.", "192.0.2.10"), record("www", "100.64.0.3")},
	}
	if diff := cmp.Diff(want, got, sameValues); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again, err := got.Checked("weft.internal")
	if err != nil || !again.Equal(got) {
		t.Errorf("checked again it is another: %v, %v", again, err)
	}
}

func TestWhatMakesNoSenseOfNamesIsRefusedInASentence(t *testing.T) {
	many := make([]weft.DNSRecord, 501)
	complete := make([]weft.DNSRecord, 33)
	for i := range many {
		many[i] = record(fmt.Sprint("r", i), "192.0.2.1")
	}
	for i := range complete {
		complete[i] = record(fmt.Sprintf("r%d.example.", i), "192.0.2.1")
	}
	split := make(map[string][]netip.AddrPort)
	for i := range 33 {
		split[fmt.Sprintf("d%d.example", i)] = nil
	}
	for _, c := range []struct {
		dns   weft.DNS
		words string
	}{
		{weft.DNS{Upstreams: at("0.0.0.0:53")}, "upstreams: 0.0.0.0:53 is no resolver"},
		{weft.DNS{Upstreams: at("9.9.9.9:0")}, "is no resolver"},
		{weft.DNS{Upstreams: at("224.0.0.251:53")}, "is no resolver"},
		{weft.DNS{Upstreams: at("[fe80::1%eth0]:53")}, "is no resolver"},
		{weft.DNS{Upstreams: []netip.AddrPort{{}}}, "is no resolver"},
		{weft.DNS{Upstreams: at("127.0.0.1:53")}, "each node itself"},
		{weft.DNS{Upstreams: at("9.9.9.9:53", "9.9.9.9:53")}, "twice"},
		{weft.DNS{Upstreams: at("9.9.9.1:53", "9.9.9.2:53", "9.9.9.3:53", "9.9.9.4:53", "9.9.9.5:53", "9.9.9.6:53", "9.9.9.7:53", "9.9.9.8:53", "9.9.9.9:53")}, "more than 8"},
		{weft.DNS{Split: map[string][]netip.AddrPort{"corp example": nil}}, `split: "corp example" is no domain`},
		{weft.DNS{Split: map[string][]netip.AddrPort{".": at("9.9.9.9:53")}}, "is no domain"},
		{weft.DNS{Split: map[string][]netip.AddrPort{"lab.weft.internal": at("9.9.9.9:53")}}, "split: lab.weft.internal is below weft.internal"},
		{weft.DNS{Split: map[string][]netip.AddrPort{"a.example": nil, "A.example": nil}}, "twice"},
		{weft.DNS{Split: map[string][]netip.AddrPort{"a.example": at("127.0.0.53:53")}}, "split: a.example: 127.0.0.53:53 is each node itself"},
		{weft.DNS{Split: split}, "more than 32"},
		{weft.DNS{Search: []string{"a.b.", "-"}}, `search: "-" is no domain`},
		{weft.DNS{Search: []string{"a", "b", "c", "d", "e", "f"}}, "more than 5"},
		{weft.DNS{Records: []weft.DNSRecord{record("*.apps", "192.0.2.1")}}, `records: "*.apps" is no name`},
		{weft.DNS{Records: []weft.DNSRecord{record("", "192.0.2.1")}}, "is no name"},
		{weft.DNS{Records: []weft.DNSRecord{record(".", "192.0.2.1")}}, "is no name"},
		{weft.DNS{Records: []weft.DNSRecord{record(strings.Repeat("a.", 124)+"a", "192.0.2.1")}}, "is no name"},
		{weft.DNS{Records: []weft.DNSRecord{record("x")}}, "1 to 16 addresses"},
		{weft.DNS{Records: []weft.DNSRecord{record("x", "0.0.0.0")}}, "records: x: 0.0.0.0 is no address of a machine"},
		{weft.DNS{Records: []weft.DNSRecord{record("x", "192.0.2.1"), record("X.weft.internal.", "192.0.2.2")}}, "records: x is there twice"},
		{weft.DNS{Records: many}, "more than 500"},
		{weft.DNS{Records: complete}, "more than 32 are not below weft.internal"},
	} {
		if _, err := c.dns.Checked("weft.internal"); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%.200v: %v, want %q", c.dns, err, c.words)
		}
	}
	for _, domain := range []string{"", ".", "internal", "local", "home.local", "a.arpa", "x.onion", "a b.c", "Home.internal", "home.internal.", "-a.b", strings.Repeat("a.", 100) + "b"} {
		if weft.CheckDomain(domain) == nil {
			t.Errorf("%q is taken for a network's domain", domain)
		}
	}
	for _, domain := range []string{weft.Domain, "home.internal", "net.example.org"} {
		if err := weft.CheckDomain(domain); err != nil {
			t.Error(err)
		}
	}
}

// FuzzNames has an administrator write anything at all: what is taken is taken again and stays as it is, and keeps to its
// bounds.
func FuzzNames(f *testing.F) {
	f.Add("printer", "corp.example", "weft.internal", "9.9.9.9:53")
	f.Add("wiki.example.", "168.192.in-addr.arpa", "home.internal", "[2620:fe::fe]:53")
	f.Add("weft.internal.", "Ads.Example.", "a.b", "127.0.0.1:1")
	f.Add("x.weft.internal.", "x\x00", "weft.internal", "")
	f.Fuzz(func(t *testing.T, name, domain, own, resolver string) {
		if weft.CheckDomain(own) != nil {
			return
		}
		a, _ := netip.ParseAddrPort(resolver)
		d := weft.DNS{Upstreams: []netip.AddrPort{a}, Split: map[string][]netip.AddrPort{domain: {a}}, Search: []string{domain},
			Records: []weft.DNSRecord{{Name: name, Addrs: []netip.Addr{a.Addr()}}}}
		got, err := d.Checked(own)
		if err != nil {
			return
		}
		again, err := got.Checked(own)
		if err != nil || !again.Equal(got) {
			t.Fatalf("%v is taken as %v, and that as %v, %v", d, got, again, err)
		}
		for _, s := range slices.Concat(got.Search, []string{got.Records[0].Name}) {
			if len(s) > 254 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Fatalf("%q is taken for a name", s)
			}
		}
	})
}
