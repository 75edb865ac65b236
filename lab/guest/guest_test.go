package guest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/lab/guest"
	"weft/lab/netns"
)

// agentWord makes this test binary the guest's agent.
const agentWord = "guest-agent"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == agentWord {
		if err := guest.Serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestAGuestRunsThisMachinesProgramsUnderDebiansKernel(t *testing.T) {
	if err := guest.Available(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	l := must(netns.New(ctx, "weftguest"))(t)
	defer l.Close()
	outside := must(l.AddHost("outside"))(t)
	r := must(l.AddRouter("router", netns.None))(t)
	p := r.Inside().Prefix()
	addr := p.Masked().Addr().Next().Next().Next()
	began := time.Now()
	g, err := guest.Boot(ctx, l, guest.Config{
		Router: r, Addrs: []netip.Prefix{netip.PrefixFrom(addr, p.Bits())},
		Agent: []string{must(os.Executable())(t), agentWord}, Modules: []string{"wireguard"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("it obeyed after %v", time.Since(began).Round(100*time.Millisecond))

	here := must(os.ReadFile("/proc/version"))(t)
	there := must(g.Run(ctx, nil, "cat", "/proc/version"))(t)
	if !strings.Contains(there, "Debian") || there == string(here) {
		t.Errorf("the guest's kernel is %q, this machine's %q", there, here)
	}
	if got := must(g.Run(ctx, []byte("by standard input"), "cat"))(t); got != "by standard input" {
		t.Errorf("cat repeats %q", got)
	}
	must(g.Run(ctx, nil, "ip", "link", "add", "wg0", "type", "wireguard"))(t)
	if got := must(g.Run(ctx, nil, "wg", "show", "interfaces"))(t); strings.TrimSpace(got) != "wg0" {
		t.Errorf("the kernel's WireGuard shows %q", got)
	}
	// Nobody listens there, and its kernel says so.
	if _, err := outside.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, 9).String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the guest is not on its network: %v", err)
	}

	t.Run("whose failures are told", func(t *testing.T) {
		out, err := g.Run(ctx, nil, "sh", "-c", "echo said; echo complained >&2; exit 3")
		if err == nil || !strings.Contains(err.Error(), "exit status 3: complained") || out != "said\n" {
			t.Errorf("it says %q, %v", out, err)
		}
		if _, err := g.Run(ctx, nil, "no-such-program"); err == nil {
			t.Error("a program that is not there ran")
		}
	})
	t.Run("whose programs end when they are not waited for any more", func(t *testing.T) {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if _, err := g.Run(short, nil, "sleep", "1000"); err == nil {
			t.Error("it slept for a thousand seconds")
		}
		err := netns.WaitFor(ctx, "sleep to end", func() error {
			out, err := g.Run(ctx, nil, "sh", "-c", "cat /proc/[0-9]*/cmdline")
			if err == nil && strings.Contains(out, "sleep\x001000") {
				err = errors.New("it is still there")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("which changes none of this machine's files", func(t *testing.T) {
		name := t.TempDir() + "/made-by-the-guest"
		if _, err := g.Run(ctx, nil, "touch", name); err == nil {
			t.Error("it made a file")
		}
		if _, err := os.Stat(name); err == nil {
			t.Error("and here it is")
		}
	})
	t.Run("and is gone when it is closed", func(t *testing.T) {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if _, err := g.Run(ctx, nil, "true"); err == nil || !strings.Contains(err.Error(), "gone") {
			t.Errorf("a closed guest says %v", err)
		}
	})
}
