package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/lab/garbage"
)

// memory is how much of a process is resident, in MiB; 0 where the system does not tell.
func memory(p *process) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kib, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]), " kB"))
	return kib >> 10
}

func TestGarbageOnEveryPortIsNothingToServerRelayAndNode(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	relayAddr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	relay := startWeft(t, "relay", "--data", t.TempDir(), "--listen", relayAddr, "--stun", relayAddr, "--url", "https://"+relayAddr,
		"--token", srv.token("--relay"))
	relay.says("member of the network")
	ann, bob := newNode(t), newNode(t)
	ann.start(srv.first, "--name", "ann")
	bob.start(srv.first, "--name", "bob")
	ann.connected()
	ann.reaches("bob")
	procs := map[string]*process{"server": srv.process, "relay": relay, "ann": ann.process, "bob": bob.process}
	before := map[string]int{}
	for name, p := range procs {
		before[name] = memory(p)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := new(net.Dialer).DialContext
	unix := func(ctx context.Context, _, path string) (net.Conn, error) { return dial(ctx, "unix", path) }
	server := fmt.Sprintf("127.0.0.1:%d", srv.port)
	node := fmt.Sprintf("127.0.0.1:%d", ann.status().Self.Port)
	proxy := ann.status().Self.Proxy
	const seed = 1
	var pouring sync.WaitGroup
	pour := func(what string, f func() error) {
		pouring.Go(func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	for _, addr := range []string{server, relayAddr, node} {
		pour("UDP "+addr, func() error { return garbage.UDP(ctx, dial, addr, seed, 10000) })
	}
	for _, addr := range []string{server, relayAddr, proxy} {
		pour("TCP "+addr, func() error { return garbage.TCP(ctx, dial, addr, seed, 150) })
	}
	for _, path := range []string{ann.socket, filepath.Join(srv.dir, adminSocket)} {
		pour(path, func() error { return garbage.TCP(ctx, unix, path, seed, 150) })
	}
	poured := make(chan struct{})
	go func() {
		pouring.Wait()
		close(poured)
	}()
	began := time.Now()
	pings, replies := 0, 0
	for dry := false; !dry; {
		if r := ann.run("ping", "bob", "-c", "1", "--timeout", "2s"); r.code == ExitOK {
			replies++
		}
		pings++
		select {
		case <-poured:
			dry = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Logf("in the shower of %v %d of %d pings were answered", time.Since(began), replies, pings)
	if replies*2 < pings {
		t.Errorf("in the shower %d of %d pings were answered", replies, pings)
	}

	// A crowd that says next to nothing takes nobody's place.
	var crowds []*garbage.Crowd
	for _, addr := range []string{server, relayAddr, proxy} {
		crowd, err := garbage.Gather(ctx, dial, addr, 200)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(crowd.Close)
		crowds = append(crowds, crowd)
	}
	cid := newNode(t)
	cid.start(srv.token(), "--name", "cid")
	cid.connected()
	cid.reaches("ann")
	bob.reaches("cid")
	if r := srv.admin("node", "list"); r.code != ExitOK || strings.Count(r.out, "online") != 3 {
		t.Errorf("the server says %+v", r)
	}
	for _, crowd := range crowds {
		crowd.Close()
	}
	cancel() // those of the shower who hold on
	for name, p := range procs {
		if err := p.running(); err != nil {
			t.Error(err)
			continue
		}
		after := memory(p)
		t.Logf("%s: %d MiB became %d MiB", name, before[name], after)
		if after > before[name]+400 { // the race detector's shadow is some 8 times what it shadows
			t.Errorf("%s: %d MiB became %d MiB", name, before[name], after)
		}
		if said := p.err.String(); strings.Count(said, "\n") > 40 {
			t.Errorf("%s wrote %d lines into its log:\n%.2000s", name, strings.Count(said, "\n"), said)
		}
		if r := p.stop(); r.code != ExitOK {
			t.Errorf("%s ended with exit code %d: %s", name, r.code, r.err)
		}
	}
}
