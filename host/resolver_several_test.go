//go:build linux

package host

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// severalOverlays is a machine with a daemon for each of some overlays: weft0 answers on 100.64.0.7, weft1 on 100.65.0.7, and so on.
type severalOverlays struct {
	*machine
	up [3]atomic.Bool
}

const foundConf = "search home.example\nnameserver 192.0.2.1\n"

func newSeveralOverlays(t *testing.T) *severalOverlays {
	s := &severalOverlays{machine: newMachine(t)}
	s.env.linkIndex = func(name string) (int, bool, error) {
		for i := range s.up {
			if name == fmt.Sprint("weft", i) {
				return 42 + i, s.up[i].Load(), nil
			}
		}
		return 0, false, nil
	}
	s.write(resolvConfPath, foundConf)
	return s
}

func (s *severalOverlays) config(i int) ResolverConfig {
	cfg := testResolverConfig(fmt.Sprint(s.state, "/", i))
	cfg.Interface = fmt.Sprint("weft", i)
	cfg.Server = netip.AddrFrom4([4]byte{100, byte(64 + i), 0, 7})
	cfg.Domains, cfg.Search = []string{fmt.Sprintf("net%d.internal", i)}, []string{fmt.Sprintf("net%d.internal", i)}
	return cfg
}

func (s *severalOverlays) start(i int) (*Resolver, error) {
	s.up[i].Store(true)
	if err := os.MkdirAll(s.config(i).StateDir, 0o700); err != nil {
		return nil, err
	}
	return configureResolver(s.Context(), s.env, s.config(i))
}

// asks reports whether the system asks the overlay's server.
func (s *severalOverlays) asks(i int) bool {
	return slices.Contains(nameservers([]byte(s.read(resolvConfPath))), s.config(i).Server)
}

func TestDaemonsThatStartAtOnceDoNotTakeEachOthersNamesAway(t *testing.T) {
	for range 100 {
		s := newSeveralOverlays(t)
		var resolvers [2]*Resolver
		var wg sync.WaitGroup
		for i := range resolvers {
			wg.Go(func() {
				var err error
				if resolvers[i], err = s.start(i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		last := 0
		if strings.Contains(s.read(resolvConfPath), "weft1:") {
			last = 1
		}
		s.must(resolvers[last].Close())
		s.up[last].Store(false)
		if !s.asks(1 - last) {
			t.Fatalf("weft%d ended, and weft%d is no longer asked:\n%s", last, 1-last, s.read(resolvConfPath))
		}
		s.must(resolvers[1-last].Close())
		if got := s.read(resolvConfPath); got != foundConf {
			t.Fatalf("after all resolv.conf is %q", got)
		}
	}
}

func TestInWhateverOrderDaemonsComeAndGoTheSystemAsksOneOfThemAndInTheEndWhomItAsked(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSeveralOverlays(t)
		mounted := rapid.Bool().Draw(rt, "mounted")
		s.env.mountPoint = func(string) (bool, error) { return mounted, nil }
		var resolvers [3]*Resolver
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			i := rapid.IntRange(0, len(resolvers)-1).Draw(rt, "daemon")
			what := rapid.SampledFrom([]string{"start", "refresh", "close", "kill"}).Draw(rt, "what")
			var err error
			switch r := resolvers[i]; {
			case r == nil && what == "start":
				resolvers[i], err = s.start(i)
			case r == nil:
			case what == "refresh":
				err = r.Refresh(s.Context())
			case what == "close":
				err = r.Close()
				resolvers[i] = nil
				s.up[i].Store(false)
			case what == "kill":
				resolvers[i] = nil
				s.up[i].Store(false) // the interface goes with its process
			}
			if err != nil {
				rt.Fatalf("weft%d: %s: %v", i, what, err)
			}
			if r := resolvers[i]; r != nil {
				asked := false
				for j := range resolvers {
					asked = asked || resolvers[j] != nil && s.asks(j)
				}
				if !asked {
					rt.Fatalf("after weft%d's %s nobody is asked:\n%s", i, what, s.read(resolvConfPath))
				}
			}
		}
		for i, r := range resolvers {
			if r != nil {
				if err := r.Close(); err != nil {
					rt.Fatal(err)
				}
				s.up[i].Store(false)
			}
		}
		for i := range resolvers { // what was killed is repaired by its next start's beginning, or `weft down`
			if err := repairLocked(s.env, s.config(i).StateDir); err != nil {
				rt.Fatal(err)
			}
		}
		// Where somebody was killed, lines are taken out of a file that holds others', and their order may be another.
		if got := strings.Split(s.read(resolvConfPath), "\n"); !sameLines(got, strings.Split(foundConf, "\n")) {
			rt.Fatalf("after all resolv.conf is %q", got)
		}
		if names := namesIn(t, s.path("/etc")); names != "resolv.conf" {
			rt.Fatalf("left behind: %s", names)
		}
	})
}

func sameLines(a, b []string) bool {
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
