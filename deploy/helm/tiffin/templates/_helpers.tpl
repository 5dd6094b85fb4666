{{- define "tiffin.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tiffin.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "tiffin.secret" -}}
{{- if .Values.token.existingSecret -}}
{{ .Values.token.existingSecret }}
{{- else -}}
{{ include "tiffin.name" . }}-token
{{- end -}}
{{- end -}}

{{- define "tiffin.labels" -}}
app.kubernetes.io/name: tiffin
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "tiffin.security" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAsUser }}
runAsGroup: {{ .Values.runAsUser }}
fsGroup: {{ .Values.runAsUser }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tiffin.tlsEnv" -}}
{{- if .Values.tls.existingSecret -}}
- name: TIFFIN_TLS_CERT
  value: /etc/tiffin/tls/server.pem
- name: TIFFIN_TLS_KEY
  value: /etc/tiffin/tls/server.key
- name: TIFFIN_TLS_CA
  value: /etc/tiffin/tls/ca.pem
{{- end -}}
{{- end -}}
