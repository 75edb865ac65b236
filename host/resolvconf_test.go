package host

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testTakeover() takeover {
	return takeover{
		iface:  "weft0",
		server: netip.MustParseAddr("100.64.0.7"),
		search: []string{"weft.internal", "0.0.d.f.ip6.arpa"},
		keptAs: "/etc/resolv.conf.before-weft0",
	}
}

const testHeader = "# weft: weft0: this file sends questions to weft, which puts the former one back when it stops\n" +
	"# weft: the former file is /etc/resolv.conf.before-weft0\n" +
	"# weft: weft0 is at 100.64.0.7 and searches weft.internal\n"

func TestOurServerComesFirstAndWhatTheFileSaidBeforeStillHolds(t *testing.T) {
	for _, tc := range []struct {
		name, former, hostDomain, want string
	}{
		{
			name:   "one server and no newline at the end",
			former: "nameserver 192.0.2.53",
			want:   "nameserver 100.64.0.7\nnameserver 192.0.2.53\nsearch weft.internal\n",
		},
		{
			name:   "comments, options and a sort list",
			former: "# by dhclient\nsearch home.example lan\nnameserver 192.0.2.1\noptions edns0 trust-ad\nsortlist 10.0.0.0\n",
			want: "nameserver 100.64.0.7\nnameserver 192.0.2.1\nsearch home.example lan weft.internal\n" +
				"# by dhclient\noptions edns0 trust-ad\nsortlist 10.0.0.0\n",
		},
		{
			name:   "more servers than the C library reads",
			former: "nameserver 192.0.2.1\nnameserver 2001:db8::1\nnameserver 192.0.2.3\n",
			want:   "nameserver 100.64.0.7\nnameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch weft.internal\n",
		},
		{
			name:   "rotate would send every second question past us",
			former: "options rotate\noptions timeout:1 rotate\nnameserver 192.0.2.1\n",
			want:   "nameserver 100.64.0.7\nnameserver 192.0.2.1\nsearch weft.internal\noptions timeout:1\n",
		},
		{
			name:   "the last of domain and search counts",
			former: "search a.example\ndomain b.example\nnameserver 192.0.2.1\n",
			want:   "nameserver 100.64.0.7\nnameserver 192.0.2.1\nsearch b.example weft.internal\n",
		},
		{
			name:       "without a search list the host name's domain is searched",
			former:     "nameserver 192.0.2.1\n",
			hostDomain: "corp.example",
			want:       "nameserver 100.64.0.7\nnameserver 192.0.2.1\nsearch corp.example weft.internal\n",
		},
		{
			name:       "with one it is not",
			former:     "search a.example\n",
			hostDomain: "corp.example",
			want:       "nameserver 100.64.0.7\nsearch a.example weft.internal\n",
		},
		{
			name:   "a comment behind an address, a zone, a line that is no address",
			former: "nameserver 192.0.2.1;x\nnameserver fe80::1%eth0\nnameserver nonsense\n",
			want: "nameserver 100.64.0.7\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\nsearch weft.internal\n" +
				"nameserver nonsense\n",
		},
		{
			name: "no file before",
			want: "nameserver 100.64.0.7\nsearch weft.internal\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tk := testTakeover()
			tk.hostDomain = tc.hostDomain
			if diff := cmp.Diff(testHeader+tc.want, string(tk.render([]byte(tc.former)))); diff != "" {
				t.Errorf("resolv.conf (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTakingOurLinesOutOfAnEditedFileLeavesTheEdit(t *testing.T) {
	tk := testTakeover()
	edited := string(tk.render([]byte("nameserver 192.0.2.1\nsearch home.example\n"))) + "options timeout:1\n"
	want := "nameserver 192.0.2.1\nsearch home.example\noptions timeout:1\n"
	if diff := cmp.Diff(want, string(tk.strip([]byte(edited), nil))); diff != "" {
		t.Errorf("resolv.conf (-want +got):\n%s", diff)
	}

	alone := "nameserver 100.64.0.7\nsearch weft.internal\n"
	want = "nameserver 192.0.2.1\n"
	if diff := cmp.Diff(want, string(tk.strip([]byte(alone), []byte("nameserver 192.0.2.1\n")))); diff != "" {
		t.Errorf("where ours was the only server the former ones take its place (-want +got):\n%s", diff)
	}
}

func FuzzResolvConf(f *testing.F) {
	for _, s := range []string{
		"", "nameserver 192.0.2.1\n", "nameserver 100.64.0.7\n", "search a b\ndomain c\noptions rotate ndots:2\n",
		"# weft: weft0 is at 100.64.0.7 and searches\n# weft: weft1 is at 10.1.0.1 and searches a b\n# weft: weft1 is at",
		"# weft: weft0: x\nnameserver 100.64.0.7\nnameserver 192.0.2.1\n", "nameserver\nsearch\noptions\n",
		"nameserver ::1%lo\r\n\tnameserver 1.1.1.1\n;x\n", "# weft: ", "search weft.internal\n", "nameserver \x00\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, former []byte) {
		tk := testTakeover()
		ours := tk.render(former)
		list := nameservers(ours)
		if len(list) == 0 || list[0] != tk.server {
			t.Fatalf("our server is not the first of %v", list)
		}
		if len(list) > maxNameservers+len(layers(ours))-1 {
			t.Fatalf("%d servers, the C library reads %d", len(list), maxNameservers)
		}
		if iface, ok := writtenFor(ours); !ok || iface != "weft0" {
			t.Fatalf("not known as ours: %q", ours)
		}
		search, _ := searchList(resolvLines(ours))
		if len(search) == 0 || strings.Contains(strings.Join(search, " "), ".arpa") && !bytes.Contains(former, []byte(".arpa")) {
			t.Fatalf("search list %q", search)
		}
		if again := tk.render(ours); !bytes.Equal(again, ours) {
			t.Fatalf("ours taken over again is\n%q\nand not\n%q", again, ours)
		}
		rest := tk.strip(ours, former)
		if tk.names(rest) {
			t.Fatalf("our server is still in %q", rest)
		}
		if _, ok := writtenFor(rest); ok {
			t.Fatalf("our header is still in %q", rest)
		}
		if want := nameservers(former, tk.server); len(want) > 0 && len(nameservers(rest)) == 0 {
			t.Fatalf("no server is left of %v in %q", want, rest)
		}
	})
}
