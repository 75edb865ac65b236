package portmap

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	// maxDescription bounds a device description in bytes: those of the field have 2 to 30 KiB.
	maxDescription = 256 << 10
	// maxSOAP bounds the answer to an action: they have some hundred bytes.
	maxSOAP = 64 << 10
	// maxServices and maxDepth bound what is read of a description. An IGD has a dozen services, 7 elements deep.
	maxServices = 64
	maxDepth    = 64
	// maxValue bounds an argument of an answer in bytes.
	maxValue = 256
)

// wanServices are what maps ports, best first.
var wanServices = []string{
	"urn:schemas-upnp-org:service:WANIPConnection:2",
	"urn:schemas-upnp-org:service:WANIPConnection:1",
	"urn:schemas-upnp-org:service:WANPPPConnection:1",
}

// A service maps ports: one external connection of a router.
type service struct{ kind, control string }

// xmlReader reads XML of others, bounded.
func xmlReader(b []byte) *xml.Decoder {
	d := xml.NewDecoder(bytes.NewReader(b))
	d.Strict = false
	// Names and numbers are ASCII in every charset that routers use.
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	return d
}

// walk calls text with the path of each element and its character data, when it ends. Names are without their
// namespaces.
func walk(b []byte, text func(path []string, value string) error) error {
	d := xmlReader(b)
	var path []string
	var value strings.Builder
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			if len(path) > 0 {
				return errors.New("the document ends in the middle")
			}
			return nil
		}
		if err != nil {
			return err
		}
		switch t := t.(type) {
		case xml.StartElement:
			if len(path) == maxDepth {
				return errors.New("the document is too deep")
			}
			path = append(path, t.Name.Local)
			value.Reset()
		case xml.CharData:
			if value.Len()+len(t) <= maxDescription {
				value.Write(t)
			}
		case xml.EndElement:
			if len(path) == 0 {
				continue
			}
			if err := text(path, strings.TrimSpace(value.String())); err != nil {
				return err
			}
			value.Reset()
			path = path[:len(path)-1]
		}
	}
}

// parseDescription returns the services of a device that map ports, best first, and the URL that others are
// relative to, if it names one.
func parseDescription(b []byte) (services []service, base string, err error) {
	var at service
	n := 0
	err = walk(b, func(path []string, value string) error {
		last := path[len(path)-1]
		inService := len(path) > 1 && path[len(path)-2] == "service"
		switch {
		case last == "URLBase" && len(path) == 2:
			base = value
		case inService && last == "serviceType":
			at.kind = value
		case inService && last == "controlURL":
			at.control = value
		case last == "service":
			if n++; n > maxServices {
				return errors.New("the description has too many services")
			}
			if slices.Contains(wanServices, at.kind) && at.control != "" {
				services = append(services, at)
			}
			at = service{}
		}
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("the router's UPnP description is damaged: %w", err)
	}
	slices.SortStableFunc(services, func(a, b service) int { return slices.Index(wanServices, a.kind) - slices.Index(wanServices, b.kind) })
	return services, base, nil
}

// A fault is a router's refusal of an action (UPnP Device Architecture 1.1 section 3.2.2).
type fault struct {
	code int
	text string
}

// Codes of faults (WANIPConnection:2 sections 2.5.16 and 2.5.20; UPnP Device Architecture 1.1 table 3-3).
const (
	faultNoSuchEntry   = 714
	faultNotAuthorized = 606
	faultConflict      = 718
	faultOnlyPermanent = 725
	faultInvalidArgs   = 402
	faultActionFailed  = 501
)

func (f fault) Error() string {
	switch f.code {
	case faultNotAuthorized:
		return "the router does not allow this machine to map ports by UPnP"
	case faultConflict:
		return "the router has given the port to another machine"
	}
	return fmt.Sprintf("the router refuses to map a port by UPnP (%d %.60q)", f.code, f.text)
}

// refusedFor reports whether an error is a router's refusal for one of these reasons.
func refusedFor(err error, codes ...int) bool {
	var f fault
	return errors.As(err, &f) && slices.Contains(codes, f.code)
}

// parseSOAP returns the arguments of an answer to an action, or its fault as error.
func parseSOAP(b []byte, action string) (map[string]string, error) {
	args := map[string]string{}
	var f fault
	answered := false
	err := walk(b, func(path []string, value string) error {
		last := path[len(path)-1]
		switch {
		case len(value) > maxValue:
			return errors.New("an argument is too long")
		case last == "errorCode":
			if _, err := fmt.Sscanf(value, "%d", &f.code); err != nil || f.code <= 0 {
				return errors.New("an error has no number")
			}
		case last == "errorDescription":
			f.text = value
		case last == action+"Response" && len(path) == 3:
			answered = true
		case len(path) == 4 && path[2] == action+"Response" && len(args) < 32:
			args[last] = value
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("the router's answer by UPnP is damaged: %w", err)
	case f.code != 0:
		return nil, f
	case !answered:
		return nil, errors.New("the router's answer by UPnP is no answer to " + action)
	}
	return args, nil
}

// argument is one of an action.
type argument struct{ name, value string }

// appendSOAP adds the body of an action (UPnP Device Architecture 1.1 section 3.2.1).
func appendSOAP(dst []byte, kind, action string, args []argument) []byte {
	w := bytes.NewBuffer(dst)
	w.WriteString(`<?xml version="1.0"?>` + "\r\n" +
		`<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>`)
	fmt.Fprintf(w, `<u:%s xmlns:u="%s">`, action, kind)
	for _, a := range args {
		fmt.Fprintf(w, "<%s>", a.name)
		_ = xml.EscapeText(w, []byte(a.value)) // a Buffer does not fail
		fmt.Fprintf(w, "</%s>", a.name)
	}
	fmt.Fprintf(w, `</u:%s></s:Body></s:Envelope>`, action)
	return w.Bytes()
}
