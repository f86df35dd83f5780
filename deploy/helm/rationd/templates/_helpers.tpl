{{/* Labels that tell this release's pods from others. */}}
{{- define "rationd.selector" -}}
app.kubernetes.io/name: rationd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rationd.labels" -}}
{{ include "rationd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* The whole configuration: a pod is replaced when it changes. */}}
{{- define "rationd.config" -}}
{{ .Values.config | trim }}

[listen]
socket = "/run/rationd/rationd.sock"
mode = {{ .Values.socket.mode | quote }}
group = {{ .Values.socket.group | toString | quote }}
# Probes and Prometheus come from outside of the pod; the NetworkPolicy says who else may.
admin = "0.0.0.0:{{ .Values.admin.port }}"
{{- if .Values.fleet.enabled }}

[fleet]
name = {{ .Values.fleet.name | quote }}
listen = "0.0.0.0:{{ .Values.fleet.port }}"
# A name for all pods.
seeds = ["{{ .Release.Name }}-peers.{{ .Release.Namespace }}.svc:{{ .Values.fleet.port }}"]
ca = "/etc/rationd-fleet/ca.pem"
cert = "/etc/rationd-fleet/node.pem"
key = "/etc/rationd-fleet/node.key"
{{- end }}
{{- end }}
