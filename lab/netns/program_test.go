package netns

import (
	"bufio"
	"context"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"
)

const programConfig = `{"inside_device": "lan0", "outside_device": "wan0", "events": true, "router": {"Name": "home",
 "Inside":  {"mac": "02:00:00:00:00:01", "Prefix4": "192.168.9.1/24"},
 "Outside": {"mac": "02:00:00:00:00:02", "Prefix4": "203.0.113.9/24"}, "Gateway4": "203.0.113.1",
 "NAT": {"Public": ["203.0.113.9"], "Mapping": "endpoint-independent", "Filtering": "address-dependent"}}}
`

func TestARouterRunsByItselfAndObeysLines(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	// box is where it runs and, by its own leg outside, a server; its leg inside is carried over to pc.
	box, pc := must(l.AddHost("box"))(t), must(l.AddHost("pc"))(t)
	in, commands := io.Pipe()
	events, out := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- box.Do(func() error { return ServeRouter(ctx, in, nil, out) })
		out.Close()
	}()
	lines := bufio.NewScanner(events)
	expect := func(parts ...string) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("it ended, and said no %v", parts)
		}
		for _, p := range parts {
			if !strings.Contains(lines.Text(), p) {
				t.Fatalf("it said %s, want %s", lines.Text(), p)
			}
		}
	}
	say := func(line string) {
		t.Helper()
		if _, err := io.WriteString(commands, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	say(programConfig)
	expect(`{"ready":true}`)
	for _, err := range []error{
		batch(box.Namespace(), "link set lan0 netns "+pc.Namespace(), "addr flush dev eth0", "addr add 203.0.113.2/24 dev wan0"),
		batch(pc.Namespace(), "addr flush dev eth0", "addr add 192.168.9.2/24 dev lan0", "link set lan0 up", "route replace default via 192.168.9.1"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s, c := udp(t, box, "0.0.0.0:7000"), udp(t, pc, "0.0.0.0:6000")
	server := netip.MustParseAddrPort("203.0.113.2:7000")
	c.send(server, "hello")
	from := s.expect("hello")
	if from.Addr() != netip.MustParseAddr("203.0.113.9") {
		t.Errorf("the server sees %v", from)
	}
	s.send(from, "back")
	c.expect("back")
	expect(`"from":"inside"`, `"src":"192.168.9.2:6000"`, `"new_src":"`+from.String()+`"`, `"verdict":"forwarded"`)
	expect(`"from":"outside"`, `"new_dst":"192.168.9.2:6000"`)
	say("block udp")
	say("counts")
	expect(`"counts":{"forwarded":2}`)
	c.send(server, "blocked")
	expect(`"dropped":true`, "UDP is blocked")
	say("allow udp")
	say("dance")
	expect("bad-request", "dance", "expected forget")
	say(`link {"Delay": 30000000}`)
	say("rebind")
	say("counts")
	expect("counts")
	began := time.Now()
	c.send(server, "again")
	if s.expect("again") == from || time.Since(began) < 30*time.Millisecond {
		t.Errorf("after %v it came from the same port", time.Since(began))
	}
	go io.Copy(io.Discard, events)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := batch(box.Namespace(), "link show wan0"); err == nil {
		t.Error("its device is still there")
	}
}

func TestARouterByItselfRefusesTheMachinesOwnNamespaceAndBadConfigs(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	for config, why := range map[string]string{
		programConfig:  "the machine's own network namespace",
		`{}`:           "names no devices",
		`{"inside":1}`: "unknown field",
		strings.Replace(programConfig, "02:00:00:00:00:01", "01:00:00:00:00:01", 1):     "no Ethernet address",
		strings.Replace(programConfig, `"endpoint-independent"`, `"something-else"`, 1): "needs a mapping behaviour",
	} {
		if err := ServeRouter(t.Context(), strings.NewReader(config), nil, io.Discard); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want an error that says %q, got %v", why, err)
		}
	}
}
