//go:build linux

package host

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAFileThatSomebodyElseWroteMeanwhileStays(t *testing.T) {
	const theirs = "# dhclient\nnameserver 198.51.100.1\n"
	for _, tc := range resolvConfs() {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			tc.make(m)
			r := m.mustConfigure(modeFile)
			m.write(resolvConfPath, theirs)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if got := m.read(resolvConfPath); got != theirs {
				t.Errorf("the file holds %q", got)
			}
			if names := namesIn(t, m.path("/etc")); names != "resolv.conf" {
				t.Errorf("left behind: %s", names)
			}
		})
	}
}

func TestALinkThatSomebodyElseMadeMeanwhileStays(t *testing.T) {
	m := newMachine(t)
	m.write(resolvConfPath, "nameserver 192.0.2.1\n")
	r := m.mustConfigure(modeFile)
	m.must(os.Remove(m.path(resolvConfPath)))
	m.write("/etc/other", "nameserver 198.51.100.1\n")
	m.link("other", resolvConfPath)
	m.must(r.Close())
	if target, err := os.Readlink(m.path(resolvConfPath)); target != "other" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
}

func TestFromAFileThatSomebodyEditedOnlyOurLinesAreTaken(t *testing.T) {
	m := newMachine(t)
	m.write(resolvConfPath, "search home.example\nnameserver 192.0.2.1\n")
	r := m.mustConfigure(modeFile)
	edited := m.read(resolvConfPath) + "options timeout:1\n"
	m.write(resolvConfPath, edited)
	m.must(r.Refresh(t.Context()))
	if got := m.read(resolvConfPath); got != edited {
		t.Errorf("an edited file that still asks us was changed to %q", got)
	}
	m.must(r.Close())
	want := "nameserver 192.0.2.1\nsearch home.example\noptions timeout:1\n"
	if diff := cmp.Diff(want, m.read(resolvConfPath)); diff != "" {
		t.Errorf("resolv.conf (-want +got):\n%s", diff)
	}
}

func TestARefreshTakesOverWhatADHCPClientWrote(t *testing.T) {
	m := newMachine(t)
	m.write(resolvConfPath, "nameserver 192.0.2.1\n")
	r := m.mustConfigure(modeFile)
	wired := m.tree()
	m.must(r.Refresh(t.Context()))
	if diff := cmp.Diff(wired, m.tree()); diff != "" {
		t.Errorf("a refresh with nothing to do changed (-before +after):\n%s", diff)
	}

	const lease = "nameserver 198.51.100.1\n"
	m.write(resolvConfPath, lease)
	m.must(r.Refresh(t.Context()))
	if got := m.firstServer(); got != "100.64.0.7" {
		t.Errorf("the first server is %q", got)
	}
	if diff := cmp.Diff([]string{"198.51.100.1:53"}, upstreamsOf(r)); diff != "" {
		t.Errorf("upstreams (-want +got):\n%s", diff)
	}
	m.must(r.Close())
	if got := m.read(resolvConfPath); got != lease {
		t.Errorf("the file holds %q", got)
	}
}

func upstreamsOf(r *Resolver) []string {
	var out []string
	for _, u := range r.Upstreams() {
		out = append(out, u.String())
	}
	return out
}

func TestAFileOfOursWithoutARecordIsNotTakenForTheMachinesOwn(t *testing.T) {
	const former = "nameserver 192.0.2.1\n"
	for _, tc := range []struct {
		name   string
		backup bool
	}{{"with its backup", true}, {"without", false}} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.write(resolvConfPath, former)
			m.mustConfigure(modeFile)
			m.must(dropResolver(m.state))
			if !tc.backup {
				m.must(os.Remove(m.path(resolvConfPath + ".before-weft0")))
			}
			m.must(m.mustConfigure(modeFile).Close())
			if got := m.read(resolvConfPath); got != former {
				t.Errorf("the file holds %q, want %q", got, former)
			}
			if names := namesIn(t, m.path("/etc")); names != "resolv.conf" {
				t.Errorf("left behind: %s", names)
			}
		})
	}
}

func TestTwoOverlaysChainAndTheFileSurvivesEitherOrderOfLeaving(t *testing.T) {
	const former = "nameserver 192.0.2.1\n"
	for _, firstLeavesFirst := range []bool{true, false} {
		m := newMachine(t)
		m.env.linkIndex = func(name string) (int, bool, error) { return 1, name == "weft0" || name == "weft1", nil }
		m.write(resolvConfPath, former)
		first := m.mustConfigure(modeFile)
		cfg := testResolverConfig(t.TempDir())
		cfg.Interface, cfg.Server, cfg.Domains = "weft1", netip.MustParseAddr("10.1.0.1"), []string{"other.internal"}
		cfg.Search = cfg.Domains
		second, err := configureResolver(t.Context(), m.env, cfg)
		m.must(err)
		if diff := cmp.Diff([]string{"192.0.2.1:53"}, upstreamsOf(second)); diff != "" {
			t.Errorf("the second asks (-want +got):\n%s", diff)
		}
		both := m.read(resolvConfPath)
		m.must(first.Refresh(t.Context()))
		m.must(second.Refresh(t.Context()))
		if got := m.read(resolvConfPath); got != both {
			t.Errorf("they take the file from each other: it was\n%sand is\n%s", both, got)
		}
		order := []*Resolver{first, second}
		if !firstLeavesFirst {
			slices.Reverse(order)
		}
		for _, r := range order {
			m.must(r.Close())
		}
		if got := m.read(resolvConfPath); got != former {
			t.Errorf("first leaves first: %v: the file holds %q", firstLeavesFirst, got)
		}
	}
}
