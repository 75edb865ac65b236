package signin

import (
	"html/template"
	"net/http"
	"net/url"
	"sync"
)

// The pages need no script, load nothing from anywhere, and stand in no frame.

// secure sets what browsers are told about every page.
func secure(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}

const frame = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>weft</title><style>
body { font: 1.1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 4rem auto; padding: 0 1rem; color-scheme: light dark }
code { font-size: 1.6rem; letter-spacing: .1em } button { font: inherit; padding: .4rem 1.2rem } dt { opacity: .7 } dd { margin: 0 0 .6rem }
</style></head><body>{{block "body" .}}{{end}}</body></html>
`

// framed makes a page of its body, when it is first shown: what a process never shows costs it nothing.
func framed(body string) func() *template.Template {
	return sync.OnceValue(func() *template.Template {
		return template.Must(template.Must(template.New("page").Parse(frame)).Parse(`{{define "body"}}` + body + `{{end}}`))
	})
}

var (
	told  = framed(`<p>{{.}}</p>`)
	asked = framed(`
<h1>Is this your machine?</h1>
<dl><dt>Machine</dt><dd>{{.Machine.Name}} ({{.Machine.System}}), from {{.Machine.Remote}}</dd>
<dt>It shows the code</dt><dd><code>{{.Machine.Code}}</code></dd>
<dt>You are</dt><dd>{{with .Who.Name}}{{.}} {{end}}{{with .Who.Email}}&lt;{{.}}&gt; {{end}}{{.Who.Subject}}</dd></dl>
<p>It will be on the network in your name. If somebody sent you the address of this page, close it: what joins is then theirs.</p>
<form method="post" action="{{.Action}}"><input type="hidden" name="token" value="{{.Token}}"><button>Yes, it is mine and shows this code</button></form>
`)
)

// question is what the confirmation asks.
type question struct {
	Machine       Machine
	Who           Identity
	Token, Action string
}

func ask(w http.ResponseWriter, q question) { _ = asked().Execute(w, q) }

// tell shows a sentence.
func tell(w http.ResponseWriter, status int, sentence string) {
	w.WriteHeader(status)
	_ = told().Execute(w, sentence)
}

// origin is the origin of a URL as browsers write it (RFC 6454 section 6.2).
func origin(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
