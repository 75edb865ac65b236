package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weft/lab/netns"
)

// The second act: who may reach whom, by what name, through which router.

// printerName is the machine in the other home that runs no weft.
const printerName = "printer"

// refusedWithin is how long a page is waited for that must not come: several times what one takes that does.
const refusedWithin = time.Second

// govern plays the second act.
func (v *village) govern(ctx context.Context) error {
	v.print("\n  Who may reach whom, by what name, through which router\n\n")
	printer, err := v.homeB.AddHost(printerName)
	if err != nil {
		return err
	}
	page, err := printer.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), pagePort))
	if err != nil {
		return fmt.Errorf("serving on %s: %w", printerName, err)
	}
	content := servePage(page, printerName)
	for _, step := range []func(context.Context, *netns.Host, string) error{v.deny, v.allow, v.routeTo, v.name} {
		if err := step(ctx, printer, content); err != nil {
			return err
		}
	}
	v.print("\n")
	return nil
}

// admin runs weft admin on the server.
func (v *village) admin(ctx context.Context, args ...string) (string, error) {
	return v.server.Run(ctx, v.binary, append([]string{"admin", "--data", filepath.Join(v.dir, "server")}, args...)...)
}

// enact puts a policy in force that allows the laptop what is given.
func (v *village) enact(ctx context.Context, printer *netns.Host, allowed ...string) error {
	text := fmt.Sprintf(`{
	"hosts": {%q: %q, %q: %q, %q: %q},
	"acls": [{"action": "accept", "src": [%q], "dst": ["%s"]}],
}
`, hereName, v.here4, thereName, v.overlay, printerName, printer.Addr(), hereName, strings.Join(allowed, `", "`))
	file := filepath.Join(v.dir, "policy.hujson")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	_, err := v.admin(ctx, "policy", "set", file)
	return err
}

func (v *village) curl(ctx context.Context, host string, within time.Duration) (string, error) {
	return v.laptop.Run(ctx, "curl", "-sS", "--fail", "--max-time", fmt.Sprintf("%.1f", within.Seconds()), "http://"+host+"/")
}

// fetch waits until a page of the printer's, or the other node's, comes, and returns when it did.
func (v *village) fetch(ctx context.Context, host, want string) (came time.Time, err error) {
	err = v.wait(ctx, "the page of "+host, func() error {
		got, err := v.curl(ctx, host, refusedWithin)
		if came = time.Now(); err == nil && !strings.Contains(got, want) {
			return fmt.Errorf("it reads %q", got)
		}
		return err
	})
	return came, err
}

func (v *village) deny(ctx context.Context, printer *netns.Host, _ string) error {
	if err := v.enact(ctx, printer, thereName+":22"); err != nil {
		return err
	}
	v.say("weft admin policy set: %s may reach %s by SSH, and nobody anything else", hereName, thereName)
	began := time.Now()
	err := v.wait(ctx, "the page of "+fqdn(thereName)+" to be refused", func() error {
		if _, err := v.curl(ctx, fqdn(thereName), refusedWithin); err == nil {
			return errors.New("it still comes")
		}
		return nil
	})
	if err != nil {
		return err
	}
	v.say("on %s: curl http://%s/ -> nothing comes, %s after the policy: %s drops it, whatever %s sends", hereName, fqdn(thereName), span(time.Since(began)), thereName, hereName)
	out, err := v.admin(ctx, "policy", "explain", hereName, thereName, "tcp:80")
	if err == nil {
		return fmt.Errorf("weft admin policy explain says that it is allowed: %s", out)
	}
	v.say("weft admin policy explain %s %s tcp:80", hereName, thereName)
	v.quote(out)
	return nil
}

func (v *village) allow(ctx context.Context, printer *netns.Host, _ string) error {
	if err := v.enact(ctx, printer, thereName+":22,80", printerName+":80"); err != nil {
		return err
	}
	v.say("weft admin policy set: %s may read the pages of %s and of the %s behind it, too", hereName, thereName, printerName)
	began := time.Now()
	came, err := v.fetch(ctx, fqdn(thereName), "Hello from "+thereName)
	if err != nil {
		return err
	}
	v.say("on %s: curl http://%s/ -> \"Hello from %s\", %s after the policy", hereName, fqdn(thereName), thereName, span(came.Sub(began)))
	return nil
}

func (v *village) routeTo(ctx context.Context, printer *netns.Host, content string) error {
	lan := v.homeB.Inside().Prefix().String()
	if _, err := v.nas.Run(ctx, v.binary, "--socket", v.socket(thereName), "set", "advertise-routes="+lan); err != nil {
		return err
	}
	v.say("on %s: weft set advertise-routes=%s: the network of home B, with a %s at %v that runs no weft", thereName, lan, printerName, printer.Addr())
	err := v.wait(ctx, thereName+" to offer its network", func() error {
		out, err := v.admin(ctx, "route", "list")
		if err == nil && !strings.Contains(out, lan) {
			err = errors.New("it is not in the list yet")
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := v.admin(ctx, "route", "approve", thereName, lan); err != nil {
		return err
	}
	began := time.Now()
	came, err := v.fetch(ctx, printer.Addr().String(), content)
	if err != nil {
		return err
	}
	v.say("weft admin route approve %s %s; on %s: curl http://%v/ -> \"Hello from %s\", %s later", thereName, lan, hereName, printer.Addr(), printerName, span(came.Sub(began)))
	return nil
}

func (v *village) name(ctx context.Context, printer *netns.Host, content string) error {
	if _, err := v.admin(ctx, "dns", "set", "record."+printerName+"="+printer.Addr().String()); err != nil {
		return err
	}
	began := time.Now()
	came, err := v.fetch(ctx, fqdn(printerName), content)
	if err != nil {
		return err
	}
	v.say("weft admin dns set record.%s=%v; on %s: curl http://%s/ -> \"Hello from %s\", %s later", printerName, printer.Addr(), hereName, fqdn(printerName), printerName, span(came.Sub(began)))
	return nil
}
