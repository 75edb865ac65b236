package portmap

import (
	"fmt"
	"testing"
	"time"
)

func TestUPnPTakesWhatTheRouterHas(t *testing.T) {
	t.Run("a port that another machine has is left to it", func(t *testing.T) {
		f := newFake(t)
		d := f.upnp(func(d *device) { d.entries["4000"] = "127.0.0.99:4000" })
		w := start(t, nil, f)
		if s := w.settled(); s.Mapping.External.Port() == 4000 || s.Mapping.External.Port() < 1024 {
			t.Errorf("%+v", s)
		}
		w.stop()
		if d.mu.Lock(); d.entries["4000"] != "127.0.0.99:4000" || len(d.entries) != 1 {
			t.Errorf("%v", d.entries)
		}
		d.mu.Unlock()
	})
	t.Run("a conflict", func(t *testing.T) {
		f := newFake(t)
		f.upnp(func(d *device) {
			d.fault = func(action string, args map[string]string) int {
				if action == "AddPortMapping" && args["NewExternalPort"] == "4000" {
					return faultConflict
				}
				return 0
			}
		})
		if s := start(t, nil, f).settled(); !s.Mapping.External.IsValid() || s.Mapping.External.Port() == 4000 {
			t.Errorf("%+v", s)
		}
	})
	for _, code := range []int{faultOnlyPermanent, faultInvalidArgs, faultActionFailed} {
		t.Run(fmt.Sprint("mappings without an end alone, ", code), func(t *testing.T) {
			f := newFake(t)
			d := f.upnp(func(d *device) {
				d.fault = func(action string, args map[string]string) int {
					if action == "AddPortMapping" && args["NewLeaseDuration"] != "0" {
						return code
					}
					return 0
				}
			})
			w := start(t, nil, f)
			if s := w.settled(); s.Mapping.External.Port() != 4000 {
				t.Errorf("%+v", s)
			}
			w.stop()
			if d.mu.Lock(); len(d.entries) != 0 || d.lease != "0" {
				t.Errorf("%v stays, asked for %s s", d.entries, d.lease)
			}
			d.mu.Unlock()
		})
	}
	t.Run("a router that does not renew what is there", func(t *testing.T) {
		f := newFake(t)
		d := f.upnp(nil)
		d.mu.Lock()
		d.fault = func(action string, args map[string]string) int {
			if _, there := d.entries[args["NewExternalPort"]]; there && action == "AddPortMapping" {
				return faultConflict
			}
			return 0
		}
		d.mu.Unlock()
		w := start(t, func(c *Client) { c.timing.lifetime, c.timing.least = time.Second, 100*time.Millisecond }, f)
		first := w.settled()
		added := func() (n int) {
			for _, action := range d.did() {
				if action == "AddPortMapping" {
					n++
				}
			}
			return n
		}
		eventually(t, "two renewals", func() bool { return added() >= 5 }) // each is refused once
		if s := w.States(); len(s) != 1 || s[0] != first || first.Mapping.External.Port() != 4000 {
			t.Errorf("%+v, and before %+v", s, first)
		}
	})
	t.Run("a router that says yes and does something else", func(t *testing.T) {
		f := newFake(t)
		d := f.upnp(func(d *device) { d.lies = true })
		d.mu.Lock()
		d.fault = func(action string, args map[string]string) int {
			if action == "AddPortMapping" {
				d.entries[args["NewExternalPort"]] = "127.0.0.99:80"
			}
			return 0
		}
		d.mu.Unlock()
		if s := start(t, nil, f).settled(); s.Mapping != (Mapping{}) {
			t.Errorf("%+v", s)
		}
	})
	for _, kind := range wanServices {
		f := newFake(t)
		f.upnp(func(d *device) { d.kind = kind })
		w := start(t, nil, f)
		if s := w.settled(); s.Mapping.Protocol != UPnP {
			t.Errorf("%s: %+v", kind, s)
		}
		w.stop()
	}
}
