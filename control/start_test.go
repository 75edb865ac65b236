package control

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft"
	"weft/control/store/storetest"
	"weft/host"
)

func TestANewNetworkHasTheRangesItIsGivenOrThoseOfTheStandards(t *testing.T) {
	w := newWorld(t)
	defer w.stop()
	st := w.Status()
	if st.IPv4 != DefaultIPv4 || st.Service.String() != "100.64.0.1" {
		t.Errorf("%+v", st)
	}
	if p := st.IPv6; p.Bits() != 48 || !netip.MustParsePrefix("fd00::/8").Contains(p.Addr()) {
		t.Errorf("%v is no /48 of RFC 4193", p)
	}
	if other := newWorld(t); other.Status().IPv6 == st.IPv6 || other.Network() == w.Network() {
		t.Error("two networks have the same range or name")
	} else {
		other.stop()
	}
	before := w.Status()
	w.restart()
	if after := w.Status(); after.IPv6 != before.IPv6 || after.Network != before.Network {
		t.Errorf("a restart made %+v of %+v", after, before)
	}

	bubble(t, func(t *testing.T, w *world) {
		m := w.join(KeyRequest{}, "a")
		if a := m.current().Self.Addrs; a[0].String() != "10.9.0.2" || a[1].String() != "fd00:9::1" {
			t.Errorf("addresses %v", a)
		}
	}, func(c *Config) {
		c.IPv4, c.IPv6 = netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd00:9::/64")
	})
}

func TestRangesChangeOnlyWhereNoNodeIsLeftOutside(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.join(KeyRequest{}, "attic")
		w.stop()
		for what, c := range map[string]struct{ v4, v6 string }{
			"left out":             {"172.16.0.0/12", "fd00:9::/64"},
			"left out of IPv6":     {"10.9.0.0/24", "fd00:8::/64"},
			"is the resolver":      {"10.9.0.2/31", ""},
			"the node's as first":  {"10.9.0.0/30", "fd00:9::/64"}, // fine: it is .2
			"larger":               {"10.8.0.0/15", "fd00:9::/48"},
			"of the wrong family":  {"fd00::/48", ""},
			"not a prefix":         {"10.9.0.1/24", ""},
			"loopback":             {"127.0.0.0/8", ""},
			"multicast":            {"224.0.0.0/8", ""},
			"too long for numbers": {"", "fd00:9::/112"},
			"too small":            {"10.9.0.0/31", ""},
		} {
			config := w.config
			config.IPv4, config.IPv6 = netip.Prefix{}, netip.Prefix{}
			if c.v4 != "" {
				config.IPv4 = netip.MustParsePrefix(c.v4)
			}
			if c.v6 != "" {
				config.IPv6 = netip.MustParsePrefix(c.v6)
			}
			s, err := New(context.Background(), config)
			good := what == "larger" || what == "the node's as first"
			if good != (err == nil) {
				t.Errorf("%s: %v", what, err)
			}
			if err != nil && (weft.CodeOf(err) != weft.CodeBadRequest || strings.Contains(what, "left out") && !strings.Contains(err.Error(), "attic")) {
				t.Errorf("%s: %v", what, err)
			}
			if s != nil {
				s.Close()
			}
		}
		w.config.IPv4 = netip.MustParsePrefix("10.8.0.0/15")
		w.start()
		m.connect()
		other := w.join(KeyRequest{}, "other")
		if got := m.current(); got.Self.Addrs[0].String() != "10.9.0.2" || got.Ranges[0].String() != "10.8.0.0/15" || got.Service.String() != "10.8.0.1" {
			t.Errorf("%+v", got)
		}
		if got := other.current().Self.Addrs[0].String(); got != "10.8.0.2" {
			t.Errorf("a new node got %s", got)
		}
	}, func(c *Config) {
		c.IPv4, c.IPv6 = netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd00:9::/64")
	})
}

func TestARangeThatIsUsedUpSaysWhatToDo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.join(KeyRequest{}, "a")
		if err := w.RemoveNode(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
		secret := w.invite(KeyRequest{})
		b := w.machine(secret, "b")
		refusedWith(t, b, weft.CodeExhausted, "larger --range")
		w.config.IPv4 = netip.MustParsePrefix("10.9.0.0/29")
		w.restart()
		b.connect()
		settle()
		if got := b.current().Self; got.Addrs == nil || got.Addrs[0].String() != "10.9.0.3" {
			t.Errorf("%+v: the key must not be spent, nor the old address given", got)
		}
	}, func(c *Config) { c.IPv4 = netip.MustParsePrefix("10.9.0.0/30") })
}

func TestAServerNeedsAURL(t *testing.T) {
	if _, err := New(context.Background(), Config{Keys: NewKeys(), Store: new(storetest.Memory), URL: "weft.example"}); err == nil {
		t.Error("no error")
	}
}

func TestADirectoryIsMadeOnceAndFoundAgain(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "new", "weft")
	d, err := OpenDir(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(ctx, path); !errors.Is(err, host.ErrLocked) || !strings.Contains(err.Error(), "stop that one") {
		t.Errorf("a second server on the directory: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v (%v)", st.Mode(), err)
	}
	files, _ := os.ReadDir(path)
	for _, f := range files {
		if st, err := f.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v (%v)", f.Name(), st.Mode(), err)
		}
	}
	before := d.Keys
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = OpenDir(ctx, path); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Keys.Server.Public() != before.Server.Public() || d.Keys.Signing.Public() != before.Signing.Public() {
		t.Error("the keys are others")
	}
}

func TestKeysThatCannotBeTrustedAreRefusedAndLeftAlone(t *testing.T) {
	for what, c := range map[string]struct {
		damage func(dir string) error
		says   string
	}{
		"cut": {func(dir string) error { return os.Truncate(filepath.Join(dir, ServerKeyFile), 20) }, "damaged"},
		"of another kind": {func(dir string) error {
			return os.Rename(filepath.Join(dir, ServerKeyFile), filepath.Join(dir, SigningKeyFile))
		}, "has a database but no server.key"},
		"open to others": {func(dir string) error { return os.Chmod(filepath.Join(dir, SigningKeyFile), 0o640) }, "chmod 600"},
		"swapped": {func(dir string) error {
			b, _ := os.ReadFile(filepath.Join(dir, ServerKeyFile))
			return os.WriteFile(filepath.Join(dir, SigningKeyFile), b, 0o600)
		}, "damaged"},
	} {
		t.Run(what, func(t *testing.T) {
			path := t.TempDir()
			d, err := OpenDir(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
			if err := c.damage(path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(filepath.Join(path, ServerKeyFile))
			secret := strings.TrimPrefix(d.Keys.Server.Reveal(), "private-serverkey:")
			if _, err := OpenDir(t.Context(), path); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), secret[:8]) {
				t.Errorf("error %v, want one that says %q", err, c.says)
			}
			if after, _ := os.ReadFile(filepath.Join(path, ServerKeyFile)); string(after) != string(before) {
				t.Error("the key was changed")
			}
		})
	}
}
