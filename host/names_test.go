//go:build linux

package host

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	miekg "github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/dns"
)

// helpNames is a node as far as names go, in the namespaces it was started in: it
// configures the link, answers on its address, and wires itself in. At 127.0.0.1
// is the server that the network came with.
func helpNames() {
	fatal := func(err error) {
		if err != nil {
			untilKilled(err.Error())
		}
	}
	lan, err := net.ListenPacket("udp", "127.0.0.1:53")
	fatal(err)
	go func() {
		_ = miekg.ActivateAndServe(nil, lan, miekg.HandlerFunc(func(w miekg.ResponseWriter, r *miekg.Msg) {
			reply := new(miekg.Msg).SetReply(r)
			switch q := r.Question[0]; {
			case q.Name != "www.example.com.":
				reply.Rcode = miekg.RcodeNameError
			case q.Qtype == miekg.TypeA:
				reply.Answer = []miekg.RR{&miekg.A{A: net.IP{192, 0, 2, 80},
					Hdr: miekg.RR_Header{Name: q.Name, Rrtype: miekg.TypeA, Class: miekg.ClassINET}}}
			}
			_ = w.WriteMsg(reply)
		}))
	}()

	cfg := testResolverConfig(os.Getenv("WEFT_HOST_TEST_STATE"))
	zone, err := dns.NewZone("weft.internal", []dns.Record{
		{Name: "laptop", Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.8"), netip.MustParseAddr("fd7a::8")}}},
		prefixes("100.64.0.0/10", "fd7a::/48")...)
	fatal(err)
	wired := make(chan *Resolver, 1)
	var upstreams func() []netip.AddrPort
	server, err := dns.NewServer(dns.Config{
		Zone:         zone,
		Listen:       []netip.AddrPort{netip.AddrPortFrom(cfg.Server, dns.Port)},
		ListenConfig: net.ListenConfig{Control: FreeBind},
		Upstreams:    func(string) []netip.AddrPort { return upstreams() },
	})
	fatal(err)
	upstreams = func() []netip.AddrPort {
		r := <-wired
		wired <- r
		return r.Upstreams()
	}
	fatal(server.Start(context.Background())) // ahead of the link
	fatal(ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"), prefixes("100.64.0.0/10", "fd7a::/48"), 1280))
	r, err := ConfigureResolver(context.Background(), cfg)
	fatal(err)
	wired <- r
	untilKilled("up by way of " + r.Mode())
}

func TestThisMachinesProgramsResolveNamesOfTheOverlayAndAllOthers(t *testing.T) {
	getent, err := exec.LookPath("getent")
	if err != nil {
		t.Skip("needs the program getent")
	}
	if text, err := os.ReadFile("/etc/nsswitch.conf"); err != nil || !strings.Contains(string(text), "dns") || strings.Contains(string(text), "resolve") {
		t.Skip("needs a C library that reads resolv.conf")
	}
	inNetworkNamespace(t)
	inMountNamespace(t)
	newTUN(t, "weft0")
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	const former = "# of the network\nsearch home.example\nnameserver 127.0.0.1\n"
	own := t.TempDir() + "/resolv.conf"
	if err := os.WriteFile(own, []byte(former), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(own, resolvConfPath, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	line, kill := helper(t, "names", "WEFT_HOST_TEST_STATE="+state)
	if line != "up by way of resolv.conf" {
		t.Fatal(line)
	}
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"ahosts laptop.weft.internal", []string{"100.64.0.8", "fd7a::8"}},
		{"ahosts LAPTOP", []string{"100.64.0.8", "fd7a::8"}}, // by the search list
		{"hosts 100.64.0.8", []string{"laptop.weft.internal"}},
		{"hosts fd7a::8", []string{"laptop.weft.internal"}},
		{"ahostsv4 www.example.com", []string{"192.0.2.80"}},
		{"ahosts nobody.weft.internal", nil},
		{"ahosts nobody.example.com", nil},
	} {
		out, err := exec.Command(getent, strings.Fields(tc.args)...).Output()
		if (err == nil) != (tc.want != nil) {
			t.Errorf("getent %s: %v", tc.args, err)
		}
		words := strings.Fields(string(out))
		for _, w := range tc.want {
			if !slices.Contains(words, w) {
				t.Errorf("getent %s: %q, want %s in it", tc.args, out, w)
			}
		}
	}
	kill()
	if err := RepairResolver(state); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(own); err != nil || string(got) != former {
		t.Errorf("after kill -9 and a repair the file holds %q, %v", got, err)
	}
}
